#!/usr/bin/env python3
"""The Helm chart, rendered by Helm's own library in the forms that people use.

  chart_test.py SPARSED

What it renders is valid by Kubernetes' schemas, fits together, and has settings that SPARSED takes; values
that cannot be are refused with a sentence.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/sparsed"
INSECURE = {"access": {"insecure": True}}
SECURE = {"access": {"secret": "who"}, "tls": {"secret": "tls", "clientCa": True}}
problems = []


def expect(holds, *what):
    if not holds:
        problems.append(" ".join(str(word) for word in what))


class Form:
    """What the chart makes of some values."""

    def __init__(self, chart, values, name="demo"):
        rendered = chart.render(values=values, name=name, namespace="work")
        self.notes = next(text for path, text in rendered.items() if path.endswith("NOTES.txt"))
        self.documents = [document for path, text in rendered.items() if path.endswith(".yaml")
                          for document in yaml.safe_load_all(text) if document]
        self.by_name = {(d["kind"], d["metadata"]["name"]): d for d in self.documents}
        expect(len(self.by_name) == len(self.documents), name, "names one thing twice")

    def one(self, kind):
        found = [document for document in self.documents if document["kind"] == kind]
        expect(len(found) == 1, kind, "is there", len(found), "times")
        return found[0]

    @property
    def pod(self):
        return self.one("StatefulSet")["spec"]["template"]

    @property
    def container(self):
        [container] = self.pod["spec"]["containers"]
        return container

    @property
    def config(self):
        return self.one("ConfigMap")["data"]["sparsed.yaml"]


def settings_of(sparsed, config, flags):
    """What SPARSED makes of the settings, and of flags besides."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(config)
        file.flush()
        result = subprocess.run([sparsed, f"--config={file.name}", *flags, "--print-config"],
                                capture_output=True, text=True, timeout=60)
    expect(result.returncode == 0, config, result.stderr)
    return yaml.safe_load(result.stdout) if result.returncode == 0 else {}


def check_form(sparsed, form):
    for document in form.documents:
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # the Prometheus operator's, of which there is no schema here
        try:
            kubernetes_validate.validate(document, "1.29", strict=True)
        except Exception as error:  # its own, and jsonschema's
            expect(False, document["kind"], document["metadata"]["name"], error)
    pod, container = form.pod, form.container
    selector = form.one("StatefulSet")["spec"]["selector"]["matchLabels"]
    labels = pod["metadata"]["labels"]
    for document in form.documents:
        wanted = document["spec"].get("selector", {}) if document["kind"] == "Service" else {}
        expect(wanted.items() <= labels.items(), document["metadata"]["name"], "selects no pod")
    expect(selector.items() <= labels.items(), "the StatefulSet does not select its pods")
    expect(("Service", form.one("StatefulSet")["spec"]["serviceName"]) in form.by_name,
           "there is no service of the StatefulSet's name")
    # Files that settings name are mounted, and volumes that are mounted are there.
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | {
        claim["metadata"]["name"]
        for claim in form.one("StatefulSet")["spec"].get("volumeClaimTemplates", [])}
    expect(set(mounts.values()) == volumes, "mounts", mounts, "and volumes", volumes)
    for key, value in yaml.safe_load(form.config).items():
        if isinstance(value, str) and value.startswith("/"):
            expect(any(value == path or value.startswith(path + "/") for path in mounts),
                   key, value, "is not mounted")
    expect(container["command"][1] == "--config=/etc/sparsed/sparsed.yaml" and
           "/etc/sparsed/sparsed.yaml" in mounts, container["command"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    flags = [flag.replace("$(POD_NAME)", "pod-0") for flag in container["command"][2:]]
    settings = settings_of(sparsed, form.config, flags)
    expect(settings.get("listen") == [f"0.0.0.0:{ports['grpc']}"], settings)
    expect(settings.get("metrics_listen") == f"0.0.0.0:{ports['metrics']}", settings)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        expect(container[probe]["httpGet"]["port"] in ports, probe, container[probe])
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    expect(grace > settings.get("shutdown_grace", 30), "the server is killed before its grace ends")
    return settings


def check_forms(sparsed, chart):
    form = Form(chart, INSECURE)
    settings = check_form(sparsed, form)
    expect(settings["insecure"] is True and settings["devices"] == ["auto"], settings)
    expect(settings["data_dir"] == "/var/lib/sparsed", settings)
    version = re.search(r"sparsed VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    expect(form.container["image"] == f"sparsed:{version}", form.container["image"])
    expect(chart.metadata["version"] == version == chart.metadata["appVersion"], chart.metadata)
    expect("nvidia.com/gpu" not in form.container["resources"]["limits"], "a GPU that nobody asked for")
    expect("without TLS" in form.notes, form.notes)
    [calls, metrics] = form.one("NetworkPolicy")["spec"]["ingress"]
    expect(calls["from"] == [{"podSelector": {"matchLabels": {"sparsed-client": "true"}}}], calls)
    expect("from" not in metrics, metrics)
    expect(form.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1, "PodDisruptionBudget")
    expect(not any(d["kind"] in ("ServiceMonitor", "PrometheusRule") for d in form.documents),
           "somebody else's kinds")

    form = Form(chart, {**SECURE, "gpu": {"enabled": True, "count": 2, "runtimeClassName": "nvidia"},
                        "replicaCount": 3, "config": {"max_queued": 1048576, "log_format": "json"},
                        "persistence": {"storageClass": "fast", "size": "1Ti"},
                        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
                        "serviceMonitor": {"enabled": True},
                        "prometheusRule": {"enabled": True, "labels": {"release": "main"},
                                           "runbooks": "https://wiki.example/sparsed"},
                        "podLabels": {"team": "graphs"}, "nodeSelector": {"gpu": "yes"}},
                name="my-sparsed")
    settings = check_form(sparsed, form)
    expect(settings["devices"] == ["cuda:0", "cuda:1"] and settings["max_queued"] == 1048576, settings)
    expect(settings["access_file"] == "/etc/sparsed/access/access.yaml", settings)
    expect(settings["tls_client_ca"] == "/etc/sparsed/tls/ca.crt", settings)
    expect("insecure" not in settings and "metrics_token" not in settings, settings)
    expect(form.container["resources"]["limits"]["nvidia.com/gpu"] == 2, form.container["resources"])
    expect(form.container["image"] == f"sparsed:{version}-cuda", form.container["image"])
    expect(form.pod["spec"]["runtimeClassName"] == "nvidia", form.pod["spec"])
    expect(form.one("StatefulSet")["metadata"]["name"] == "my-sparsed", "the name has sparsed twice")
    expect("replicas" in form.notes and "TLS" in form.notes, form.notes)
    [endpoint] = form.one("ServiceMonitor")["spec"]["endpoints"]
    expect(endpoint["path"] == "/metrics", endpoint)
    expect("--tls-server-name=my-sparsed.work.svc" in form.notes, form.notes)
    check_rules(form.one("PrometheusRule"), "https://wiki.example/sparsed")
    for volume in form.pod["spec"]["volumes"]:  # as the server asks of files of secrets
        expect(volume.get("secret", {}).get("defaultMode", 0o440) == 0o440, volume)

    form = Form(chart, {**INSECURE, "persistence": {"enabled": False}, "networkPolicy": {"enabled": False},
                        "podDisruptionBudget": {"enabled": False},
                        "image": {"repository": "registry.example/sparsed"}})
    settings = check_form(sparsed, form)
    expect(form.container["image"] == f"registry.example/sparsed:{version}", form.container["image"])
    expect(settings["in_memory"] is True and "data_dir" not in settings, settings)
    expect("a restart loses them" in form.notes, form.notes)
    expect({d["kind"] for d in form.documents} == {"ConfigMap", "Service", "StatefulSet"}, form.by_name)
    check_cluster(sparsed, chart)
    # Other settings are another pod, the same ones are not.
    again = {**INSECURE, "persistence": {"enabled": False}}
    sums = [Form(chart, values).pod["metadata"]["annotations"]["checksum/config"]
            for values in (again, again, {**again, "config": {"worker_slots": 2}})]
    expect(sums[0] == sums[1] != sums[2], sums)


def check_cluster(sparsed, chart):
    etcd = ["etcd-0.etcd:2379", "etcd-1.etcd:2379"]
    form = Form(chart, {**INSECURE, "replicaCount": 3, "cluster": {"etcd": etcd}})
    settings = check_form(sparsed, form)
    expect(settings["etcd"] == etcd and settings["replicas"] == 2, settings)
    expect(form.container["command"][2:] ==
           ["--node=$(POD_NAME)", "--advertise=$(POD_NAME).demo-sparsed-headless.work.svc:7470"],
           form.container["command"])
    expect([name["name"] for name in form.container["env"]] == ["POD_NAME"], form.container["env"])
    expect("lifecycle" not in form.container, form.container)
    spec = form.one("StatefulSet")["spec"]
    expect(spec["minReadySeconds"] >= 30, "alerts may fire in a rolling restart:", spec)
    labels = spec["selector"]["matchLabels"]
    policy = form.one("NetworkPolicy")["spec"]
    expect({"podSelector": {"matchLabels": labels}} in policy["ingress"][0]["from"], policy)
    [peers, others] = policy["egress"]
    expect(peers["to"] == [{"podSelector": {"matchLabels": labels}}], peers)
    expect([port["port"] for port in others["ports"]] == [2379, 53, 53], others)
    expect("answer for each other" in form.notes and "on 2 of them" in form.notes, form.notes)

    form = Form(chart, {**SECURE, "cluster": {"etcd": etcd, "tokenSecret": "nodes", "drainSeconds": 300},
                        "terminationGracePeriodSeconds": 400, "replicaCount": 3})
    settings = check_form(sparsed, form)
    expect(settings["cluster_token_file"] == "/etc/sparsed/cluster/token", settings)
    expect(settings["cluster_ca"] == "/etc/sparsed/tls/ca.crt", settings)
    [stop] = form.container["lifecycle"]["preStop"]["exec"]["command"][2:]
    expect('cluster drain "$POD_NAME" --wait=300' in stop and "--token-file=" in stop, stop)
    [start] = form.container["lifecycle"]["postStart"]["exec"]["command"][2:]
    expect("--undo" in start, start)


def check_rules(rule, runbooks):
    """They are those of deploy/prometheus, and lead to the runbooks where these are said to be."""
    expect(rule["metadata"]["labels"].get("release") == "main", rule["metadata"])
    files = [ROOT / "deploy/prometheus" / name for name in ("rules.yml", "alerts.yml")]
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    urls = 0
    for group in groups:
        for alert in group["rules"]:
            if "alert" in alert:
                url = f"{runbooks}#{alert['alert'].lower()}"
                alert["annotations"]["runbook_url"] = url
                urls += 1
    expect(urls > 20, "only", urls, "alerts")
    expect(rule["spec"]["groups"] == groups, "other rules than those of deploy/prometheus")


def check_refusals(chart):
    for values, word in (({}, "access.insecure=true"),
                         ({"access": {"secret": "who"}}, "tls.secret"),
                         ({**INSECURE, "tls": {"clientCa": True}}, "tls.clientCa"),
                         ({**SECURE, "access": {"secret": "who", "metricsToken": True}}, "metricsToken"),
                         ({**INSECURE, "replicas": 2}, "replicas"),
                         ({**SECURE, "cluster": {"etcd": ["e:2379"]}}, "cluster.tokenSecret"),
                         ({**INSECURE, "cluster": {"etcd": ["e:2379"], "tokenSecret": "nodes"}},
                          "tls.secret"),
                         ({**INSECURE, "cluster": {"etcd": ["http://e:2379"]}}, "etcd"),
                         ({**INSECURE, "cluster": {"etcd": ["e:2379"]}, "persistence": {"enabled": False}},
                          "cluster.replicas"),
                         ({**INSECURE, "cluster": {"etcd": ["e:2379"]},
                           "podDisruptionBudget": {"maxUnavailable": 2}}, "maxUnavailable"),
                         ({**INSECURE, "cluster": {"etcd": ["e:2379"], "drainSeconds": 60}},
                          "terminationGracePeriodSeconds"),
                         ({**INSECURE, "gpu": {"enabled": True, "count": 0}}, "count"),
                         ({**INSECURE, "config": {"host-memory": "1GiB"}}, "host-memory"),
                         ({**INSECURE, "persistence": {"size": "lots"}}, "size"),
                         ({**INSECURE, "prometheusRule": {"runbooks": "https://wiki.example/#top"}}, "runbooks"),
                         ({**INSECURE, "persistence": {"accessModes": ["ReadWriteMany"]}}, "accessModes"),
                         ({**INSECURE, "networkPolicy": {"clientLabels": {"sparsed-client": True}}},
                          "clientLabels")):
        try:
            Form(chart, values)
            expect(False, values, "is rendered")
        except helm_python.HelmError as error:
            expect(word in str(error), values, "is refused with:", error)


def main(sparsed):
    result = helm_python.lint(str(CHART), values=INSECURE)
    expect(not result["errors"], result)
    expect(all(message["severity"] <= 1 for message in result["messages"]), result)
    with helm_python.Chart.load(str(CHART)) as chart:
        check_forms(sparsed, chart)
        check_refusals(chart)
    for problem in problems:
        print(problem)
    if not problems:
        print("The chart renders, and what it renders fits together.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
