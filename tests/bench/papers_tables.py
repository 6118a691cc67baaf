import pathlib
def page(): return (pathlib.Path(__file__).resolve().parents[2]/"docs/papers.md").read_text()
