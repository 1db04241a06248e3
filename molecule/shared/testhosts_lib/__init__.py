"""The engine, images and clean-up of the test hosts; ``testhosts`` is the command around it."""
