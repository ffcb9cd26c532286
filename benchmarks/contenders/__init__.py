"""Who is measured: one file for each contender, each opening the jobs that it can do."""
