"""Who signs: keys in this process, in key files and keystores, or behind a signing service; one ring for all of them."""

from fencepost.adapters.signers.ring import KeyRing, load_keys

__all__ = ["KeyRing", "load_keys"]
