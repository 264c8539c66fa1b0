"""Check what runs need on this machine: Java, Spark, jars, settings, a warehouse, memory."""
