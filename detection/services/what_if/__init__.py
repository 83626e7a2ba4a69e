"""What-ifs: replay the history of a project under the current policy and under a changed one."""
