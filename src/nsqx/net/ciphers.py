"""TLS cipher suites in OpenSSL's notation.

The security level is 1, because Go accepts RSA keys of 1024 bits; the default of OpenSSL is 2 in many distributions.
"""

CIPHERS = "@SECLEVEL=1:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""The cipher suites of Python's ssl module."""

OLD_CIPHERS = "DEFAULT:@SECLEVEL=0"
"""The cipher suites for TLS 1.0 and 1.1; OpenSSL allows their signatures only on level 0."""
