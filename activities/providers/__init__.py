"""Model providers: the seam (``base``), the registry, and two services over HTTP.

Nothing is imported here, so that definitions can use ``base`` without an HTTP client.
"""
