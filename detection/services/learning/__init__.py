"""Learns from labelled incidents: suggests changes of policy, which a person accepts or rejects. Nothing changes by itself."""
