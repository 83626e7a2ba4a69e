"""The filter language and the time ranges of all lists, without any table: text to terms, text to two moments.

Pure: which fields a list has, and their SQL, is in `detection.selectors.lists`.
"""
