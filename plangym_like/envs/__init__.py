"""One family of simulators per file; this file imports none of them."""
