"""What sharding annotations alone come to, beside jzero: `python -m` this package."""
