"""Incidents: opened, escalated and ended by detection; acknowledged, snoozed, resolved and labelled by people."""
