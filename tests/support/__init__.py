"""Helpers of the tests: small federations, fake links, browsers and clusters."""
