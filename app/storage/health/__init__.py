"""The health of the database: what its errors mean, whether its file is still there, and whether it answers."""
