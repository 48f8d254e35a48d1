"""Sign with keys in this process, from key files and keystores, or behind a signing service."""

from fencepost.adapters.signers.ring import KeyRing, load_keys

__all__ = ["KeyRing", "load_keys"]
