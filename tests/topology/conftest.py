from hypothesis import settings

# A shared machine pauses a test for longer than any example takes: slowness is no failure here.
settings.register_profile("topology", deadline=None)
settings.load_profile("topology")
