"""Run tests on other versions of Python, Java and Spark."""
