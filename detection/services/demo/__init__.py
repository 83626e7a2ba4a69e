"""The past of the demo: two weeks of scripted runs, judged as they would have been then."""
