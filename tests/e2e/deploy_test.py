#!/usr/bin/env python3
"""The deployment files, as far as they can be tried without what they are for.

  deploy_test.py SPARSED CMAKE SCRATCH_FOLDER

The programs' flags in them exist, and start nothing but what they say. Each has its form for a GPU,
which fits the form that it changes. Compose's Prometheus finds the server, its Grafana Prometheus and the
dashboards. What the container is built from is enough to configure and to install from. systemd finds
nothing wrong with its unit, and little that it could do to the machine, where systemd is installed.
Skipped (exit status 77) where Python's YAML is not.
"""

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


def check_settings(sparsed):
    """Each flag is in deploy/sparsed.yaml, and each key there is a flag, set or with its default behind #."""
    text = (DEPLOY / "sparsed.yaml").read_text()
    result = run([sparsed, "--help"])
    flags = set(re.findall(r"^  --([a-z-]+)", result.stdout, re.M))
    flags -= {"version", "config", "print-config", "check-config", "salvage", "calibrate", "help"}
    settings = dict(re.findall(r"^#?([a-z_]+): *(.*)$", text, re.M))
    missing = {flag.replace("-", "_") for flag in flags} ^ (settings.keys())
    expect(len(flags) > 40 and not missing, f"sparsed.yaml and --help differ in {missing}")
    # Defaults are defaults: with them a server is as without, but for what is set anyway, what is this
    # machine's, and files, which have none.
    others = {*yaml.safe_load(text), "audit_log", "access_file", "metrics_token", "host_memory", "wire_memory",
              "preparation_memory", "connection_memory", "device_memory", "threads", "preparation_threads",
              "max_connections", "otlp_endpoint", "socket_group", "tls_certificate", "tls_key", "tls_client_ca",
              "etcd", "etcd_ca", "etcd_certificate", "etcd_key", "cluster_staleness", "cluster_settle", "advertise", "node", "cluster_token_file", "cluster_ca", "replicas", "replication_rate"}
    defaults = {key: yaml.safe_load(value) for key, value in settings.items() if key not in others}
    expect(len(defaults) > 20 and defaults["in_memory"] is False, defaults)
    without = settings_of(sparsed, {"data_dir": "/d"})
    got = settings_of(sparsed, {"data_dir": "/d", **defaults})
    other = [key for key in {*got, *without} if got.get(key) != without.get(key)]
    expect(not other, f"sparsed.yaml has other defaults of {other}")


def settings_of(sparsed, config):
    """What `sparsed` makes of a file with these settings."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        result = run([sparsed, f"--config={file.name}", "--print-config"])
    expect(result.returncode == 0, f"{config}: {result.stderr}")
    return yaml.safe_load(result.stdout) if result.returncode == 0 else {}


def check_systemd(sparsed):
    unit = (DEPLOY / "systemd/sparsed.service").read_text()
    command = re.search(r"^ExecStart=sparsed (.*)$", unit, re.M).group(1)
    expect(command == "--config=/etc/sparsed/sparsed.yaml", f"sparsed.service starts with {command}")
    config = expect_flags(sparsed, [f"--config={DEPLOY / 'sparsed.yaml'}"], "sparsed.yaml")
    # What systemd makes is what the settings name.
    expect(config["data_dir"] == "/var/lib/sparsed" and "\nStateDirectory=sparsed\n" in unit, config)
    sockets = [address for address in config["listen"] + [config["local_listen"]]
               if address.startswith("unix:")]
    expect(len(sockets) == 2 and all(address.startswith("unix:/run/sparsed/") for address in sockets) and
           "\nRuntimeDirectory=sparsed\n" in unit, sockets)
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1))
    expect(stop > config["shutdown_grace"], "systemd kills the server before its grace ends")
    watchdog = int(re.search(r"^WatchdogSec=(\d+)$", unit, re.M).group(1))
    expect(watchdog > 2 * config["give_up_after"], "systemd gives up before the server does")
    user = re.search(r"^User=(.*)$", unit, re.M).group(1)
    expect(re.search(f"^u {user} ", (DEPLOY / "systemd/sparsed.sysusers").read_text(), re.M),
           f"nobody makes the user {user}")
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
            check_exposure(path, len(drop_ins))


def check_exposure(path, with_gpu):
    """How much of the machine the service reaches, by systemd's scale from 0 to 10."""
    result = run(["systemd-analyze", "security", "--offline=true", "--no-pager", path])
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result.stdout)
    if not found:
        print("systemd-analyze is too old to look at a unit: its exposure is not known")
        return
    # Sockets for clients and the users at their other ends, and files of /proc, are what it needs.
    most = 1.6 if with_gpu else 1.5
    expect(float(found.group(1)) <= most,
           f"exposure {found.group(1)} > {most}{' with the GPU' if with_gpu else ''}:\n" +
           "\n".join(line for line in result.stdout.splitlines() if line.startswith("✗")))


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


def datasources_of(part):
    """The uids that a dashboard, or a part of it, asks."""
    if isinstance(part, dict):
        found = {part["datasource"]["uid"]} if isinstance(part.get("datasource"), dict) else set()
        return found.union(*map(datasources_of, part.values()))
    return set().union(*map(datasources_of, part)) if isinstance(part, list) else set()


def ports_of(services, name):
    return [published.rpartition(":")[2] for published in services.get(name, {}).get("ports", [])]


def check_watching():
    """Who scrapes whom in compose, and what Grafana is given."""
    services = load("compose.yaml")[0]["services"]
    for name, service in services.items():
        for volume in service.get("volumes", []):
            here = volume.split(":")[0]
            expect(not here.startswith(".") or (DEPLOY / here).is_dir(),
                   f"compose: {name} mounts {here}: there is no such folder")
    [prometheus] = load("prometheus/prometheus.yml")
    [scraped] = prometheus["scrape_configs"]
    [[host, _, port]] = [target.rpartition(":") for target in scraped["static_configs"][0]["targets"]]
    expect(port in ports_of(services, host), f"prometheus.yml scrapes {host}:{port}, which compose has not")
    for rules in prometheus["rule_files"]:
        expect((DEPLOY / "prometheus" / rules).exists(), f"prometheus.yml has no file {rules}")
    provisioning = "grafana/provisioning"
    [source] = load(f"{provisioning}/datasources/prometheus.yml")[0]["datasources"]
    host, _, port = source["url"].removeprefix("http://").rpartition(":")
    expect(port in ports_of(services, host), f"Grafana asks {source['url']}, which compose has not")
    grafana = services["grafana"]
    mounts = dict(volume.removesuffix(":ro").split(":") for volume in grafana["volumes"])
    expect(mounts.get("./grafana/provisioning") == "/etc/grafana/provisioning",
           f"Grafana's settings are mounted elsewhere: {mounts}")
    [provider] = load(f"{provisioning}/dashboards/sparsed.yml")[0]["providers"]
    expect(mounts.get("./grafana/dashboards") == provider["options"]["path"],
           f"dashboards are looked for in {provider['options']['path']}, and mounted elsewhere: {mounts}")
    home = pathlib.PurePath(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    expect(str(home.parent) == provider["options"]["path"], f"the home dashboard is not among them: {home}")
    dashboards = {file.name: json.loads(file.read_text())
                  for file in (DEPLOY / "grafana/dashboards").glob("*.json")}
    expect(home.name in dashboards, f"there is no home dashboard {home.name}")
    uids = [dashboard["uid"] for dashboard in dashboards.values()]
    expect(len(set(uids)) == len(uids), f"dashboards have one uid twice: {uids}")
    for name, dashboard in dashboards.items():
        expect(datasources_of(dashboard) == {source["uid"]}, f"{name} asks {datasources_of(dashboard)}")
        for link in dashboard["links"]:
            expect(link["url"].removeprefix("/d/") in uids, f"{name} links to {link['url']}, which is none")


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
    sparsed = pathlib.Path(sparsed).resolve()
    entry = check_container(cmake, pathlib.Path(scratch))
    expect_flags(sparsed, entry, "Dockerfile")
    check_settings(sparsed)
    check_systemd(sparsed)
    check_compose(sparsed, entry)
    check_watching()
    for problem in problems:
        print(problem)
    if not problems:
        print("The deployment files hold together.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
