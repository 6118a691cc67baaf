#!/usr/bin/env python3
"""The deployment files, as far as they can be tried without what they are for.

  deploy_test.py SPARSED CMAKE SCRATCH_FOLDER

The programs' flags in them exist, and start nothing but what they say. Each has its form for a GPU,
which fits the form that it changes. What the container is built from is enough to configure and to
install from. systemd finds nothing wrong with its unit, where systemd is installed. Skipped (exit
status 77) where Python's YAML is not.
"""

import copy
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("Python's yaml is not installed (python3-yaml)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
problems = []


def expect(holds, sentence):
    if not holds:
        problems.append(sentence)


def run(command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)


def expect_flags(sparsed, flags, where):
    """`sparsed` takes these flags. The machine that they are for has another memory than this one."""
    kept = [flag for flag in flags if not flag.startswith("--host-memory=")]
    result = run([sparsed, *kept, "--print-config"])
    expect(result.returncode == 0, f"{where}: {' '.join(kept)}: {result.stderr}")
    return yaml.safe_load(result.stdout) if result.returncode == 0 else {}


def load(path):
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def check_systemd(sparsed):
    unit = (DEPLOY / "systemd/sparsed.service").read_text()
    command = re.search(r"^ExecStart=sparsed ((?:.*\\\n)*.*)$", unit, re.M).group(1)
    expect_flags(sparsed, shlex.split(command.replace("\\\n", " ")), "sparsed.service")
    drop_in = (DEPLOY / "systemd/sparsed-gpu.conf").read_text()
    expect(re.search(r"^PrivateDevices=no$", drop_in, re.M), "sparsed-gpu.conf hides the card")
    expect(re.search(r"^DeviceAllow=char-nvidia-uvm rw$", drop_in, re.M),
           "sparsed-gpu.conf does not let the service have /dev/nvidia-uvm")
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is not installed: its unit is not verified")
        return
    for drop_ins in ([], [drop_in]):
        with tempfile.TemporaryDirectory(prefix="sparsed-units-") as name:
            path = pathlib.Path(name) / "sparsed.service"
            path.write_text(unit.replace("ExecStart=sparsed", f"ExecStart={sparsed}"))
            if drop_ins:
                folder = pathlib.Path(name) / "sparsed.service.d"
                folder.mkdir()
                (folder / "gpu.conf").write_text(drop_in)
            result = run(["systemd-analyze", "verify", "--man=no", path])
            # It also reads the machine's own units; only ours matter.
            said = [line for line in result.stderr.splitlines() if "sparsed" in line]
            expect(not said, "systemd-analyze verify: " + "\n".join(said))


def check_compose(sparsed, entry):
    [base], [gpu] = load("compose.yaml"), load("compose.gpu.yaml")
    for service in gpu["services"]:
        expect(service in base["services"], f"compose.gpu.yaml changes no service: {service}")
    server = gpu["services"]["sparsed"]
    devices = server["deploy"]["resources"]["reservations"]["devices"]
    expect(devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}],
           f"compose.gpu.yaml asks for other devices: {devices}")
    expect(server["build"]["args"] == {"GPU": "cuda"}, "compose.gpu.yaml builds without kernels")
    expect(server["image"] != base["services"]["sparsed"]["image"],
           "compose.gpu.yaml would take the CPU's image")
    config = expect_flags(sparsed, entry + server["command"], "compose.gpu.yaml")
    expect(config.get("devices") == ["cuda:0"], "compose.gpu.yaml would start without the GPU")


def patched(document, patch):
    """A JSON patch of nothing but additions."""
    document = copy.deepcopy(document)
    for step in patch:
        if step["op"] != "add":
            raise ValueError(step)
        *way, last = (word.replace("~1", "/") for word in step["path"].lstrip("/").split("/"))
        place = document
        for word in way:
            place = place[int(word)] if isinstance(place, list) else place[word]
        if isinstance(place, list):
            place.append(step["value"])
        else:
            place[last] = step["value"]
    return document


def check_kubernetes(sparsed, entry):
    folder = DEPLOY / "kubernetes"
    [base], [gpu] = load("kubernetes/base/kustomization.yaml"), load("kubernetes/gpu/kustomization.yaml")
    for resource in base["resources"]:
        expect((folder / "base" / resource).is_file(), f"kubernetes/base has no {resource}")
    for resource in gpu["resources"]:
        expect((folder / "gpu" / resource / "kustomization.yaml").is_file(),
               f"kubernetes/gpu has no base {resource}")
    documents = load("kubernetes/base/sparsed.yaml")
    names = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    expect(len(names) == 4, f"kubernetes/base/sparsed.yaml has {sorted(names)}")
    for patch in gpu["patches"]:
        key = (patch["target"]["kind"], patch["target"]["name"])
        names[key] = patched(names[key], yaml.safe_load(patch["patch"]))
    for form, deployment in (("base", documents[2]), ("gpu", names["Deployment", "sparsed"])):
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        config = expect_flags(sparsed, entry + container["args"], f"kubernetes/{form}")
        expect(config.get("devices") == (["cuda:0"] if form == "gpu" else ["auto"]),
               f"kubernetes/{form} would use {config.get('devices')}")
        expect(container["resources"]["limits"].get("nvidia.com/gpu") ==
               (1 if form == "gpu" else None), f"kubernetes/{form}: {container['resources']}")
    expect([image["name"] for image in gpu["images"]] ==
           [names["Deployment", "sparsed"]["spec"]["template"]["spec"]["containers"][0]["image"]
            .split(":")[0]], "kubernetes/gpu would run the CPU's image")


def check_container(cmake, scratch):
    """The Dockerfile's stages follow each other, and its context is all that a build needs."""
    text = (ROOT / "Dockerfile").read_text()
    for gpu in ("none", "cuda"):
        known = set()
        for image, stage in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.M):
            image = image.replace("${GPU}", gpu).replace("${CUDA_IMAGE}", "nvidia/cuda:0")
            expect(":" in image or image in known, f"Dockerfile: with GPU={gpu}, no stage {image}")
            known.add(stage)
    lines = [line.strip() for line in (ROOT / ".dockerignore").read_text().splitlines()]
    wanted = [line[1:] for line in lines if line.startswith("!")]
    expect([line for line in lines if line and line[0] not in "#!"] == ["*"],
           ".dockerignore leaves more to itself than this test knows")
    files = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout.split("\n")
    context = scratch / "context"
    shutil.rmtree(scratch, ignore_errors=True)
    for name in filter(None, files):
        if any(name == path or name.startswith(path + "/") for path in wanted):
            copied = context / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, copied)
    expect(context.exists(), "git lists no files: is this a checkout?")
    result = run([cmake, "-S", context, "-B", scratch / "build", "-G", "Ninja",
                  "-DCMAKE_BUILD_TYPE=Release", "-DSPARSED_CUDA=OFF", "-DSPARSED_BUILD_TESTS=OFF",
                  "-DSPARSED_BUILD_BENCH=OFF"])
    expect(result.returncode == 0, f"the container's build: {result.stderr[-2000:]}")
    for script in scratch.glob("build/**/cmake_install.cmake"):
        for name in re.findall(f'"({re.escape(str(context))}/[^"]*)"', script.read_text()):
            expect(pathlib.Path(name).exists(), f"the container's build installs {name}, "
                   "which .dockerignore leaves out")
    shutil.rmtree(scratch, ignore_errors=True)
    return json.loads(re.search(r"^ENTRYPOINT (\[(?:.*\\\n)*.*\])$", text, re.M).group(1)
                      .replace("\\\n", ""))[1:]


def main(sparsed, cmake, scratch):
    entry = check_container(cmake, pathlib.Path(scratch))
    expect_flags(sparsed, entry, "Dockerfile")
    check_systemd(sparsed)
    check_compose(sparsed, entry)
    check_kubernetes(sparsed, entry)
    for problem in problems:
        print(problem)
    if not problems:
        print("The deployment files hold together.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
