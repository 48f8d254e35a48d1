"""Load and validate the settings; nothing else reads the environment or `fencepost.toml`.

`load` reads the layers once, at start: defaults, then the file (the given path, or $FENCEPOST_CONFIG, or
./fencepost.toml if it exists), then variables FENCEPOST_…, then flags. The result is frozen, typed and validated as a
whole. A setting that is unknown, malformed or out of range raises a one-line `SettingError` with the key, the source, the
value and what is allowed. Messages, `repr` and `mask` never show secrets: private keys (from FENCEPOST_KEY_<ANYTHING>),
passwords, and the paths of RPC URLs.

Settings are declared in `schema`; read it first.
"""

from fencepost.settings.display import DisplayedSetting, displayed_settings, mask, plain_text
from fencepost.settings.example import example_toml
from fencepost.settings.loading import Loaded, load
from fencepost.settings.masking import mask_dsn, mask_url
from fencepost.settings.reference import reference_markdown
from fencepost.settings.schema.core import (
    CHAIN_KEYS,
    DECLARED,
    SIGNER_KEYS,
    ChainSettings,
    ConfirmationTag,
    Settings,
    SignerMode,
    SignerOverride,
    SignerSettings,
    StartFrom,
)

__all__ = [
    "CHAIN_KEYS",
    "DECLARED",
    "SIGNER_KEYS",
    "ChainSettings",
    "ConfirmationTag",
    "DisplayedSetting",
    "Loaded",
    "Settings",
    "SignerMode",
    "SignerOverride",
    "SignerSettings",
    "StartFrom",
    "displayed_settings",
    "example_toml",
    "load",
    "mask",
    "mask_dsn",
    "mask_url",
    "plain_text",
    "reference_markdown",
]
