"""The pages about PyTorch: the blocks of each are one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.autograd")
pytest.importorskip("scipy")

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("page", ["python-torch.md", "python-migration.md"])
def test_examples_of_the_documentation(server, page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert len(blocks) > 3
    program = tmp_path / "program.py"  # torch.compile wants to read it
    program.write_text("\n".join(blocks).replace("unix:/tmp/sparsed.sock", server.address))
    result = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
