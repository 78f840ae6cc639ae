"""Cipher suites of TLS, in OpenSSL's notation.

The security level is 1, because Go accepts RSA keys of 1024 bits; OpenSSL's own default is 2 in many distributions.
"""

CIPHERS = "@SECLEVEL=1:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""Those of Python's ssl module."""

OLD_CIPHERS = "DEFAULT:@SECLEVEL=0"
"""For TLS 1.0 and 1.1, whose signatures OpenSSL allows on level 0 only."""
