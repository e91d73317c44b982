"""What builds and tests this repository; needs nothing but Python itself."""
