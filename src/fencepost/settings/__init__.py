"""Settings: the only reader of the environment and of `fencepost.toml`.

`load` goes through the layers once, at start: defaults, then the file (the path given, or $FENCEPOST_CONFIG, or
./fencepost.toml if it exists), then variables FENCEPOST_…, then flags. What comes out is frozen, typed and checked as a
whole; nobody reads a setting from anywhere else. A setting that is unknown, malformed or out of range is a
`SettingError` of one line that names key, source, value and what is allowed. Secrets stay out of messages, of `repr`
and of `mask`: private keys (from FENCEPOST_KEY_<ANYTHING>), passwords, and the paths of RPC URLs.

`declaration` is the one place where settings are added; read it first.
"""

from fencepost.settings.declaration import (
    CHAIN_KEYS,
    DECLARED,
    SIGNER_KEYS,
    ChainSettings,
    ConfirmationTag,
    Settings,
    SignerMode,
    SignerOverride,
    SignerPolicy,
    StartFrom,
)
from fencepost.settings.display import Shown, mask, plain_text, shown_settings
from fencepost.settings.example import example_toml
from fencepost.settings.loading import Loaded, load
from fencepost.settings.masking import mask_dsn, mask_url
from fencepost.settings.reference import reference_markdown

__all__ = [
    "CHAIN_KEYS",
    "DECLARED",
    "SIGNER_KEYS",
    "ChainSettings",
    "ConfirmationTag",
    "Loaded",
    "Settings",
    "Shown",
    "SignerMode",
    "SignerOverride",
    "SignerPolicy",
    "StartFrom",
    "example_toml",
    "load",
    "mask",
    "mask_dsn",
    "mask_url",
    "plain_text",
    "reference_markdown",
    "shown_settings",
]
