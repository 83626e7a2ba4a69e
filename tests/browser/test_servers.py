"""The browser tests' own ground: both servers answer a real browser."""


def test_a_browser_reaches_pages_and_the_live_server(site, page):
    answer = page.goto(f"{site.url}/healthz")
    assert answer is not None
    assert answer.status == 200
    assert page.request.get(f"{site.live_url}/healthz").status == 200
