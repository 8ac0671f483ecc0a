"""The Dockerfile and the Kubernetes manifest in `deploy`: linted, valid, of the versions of this repository.

These tests need neither Docker nor a cluster: `hadolint` is the usual linter of Dockerfiles, and
`kubernetes-validate` brings the schemas of the Kubernetes API. What neither can see is compared here;
tests/process/test_manifest_program.py runs the program of the manifest.
"""

from __future__ import annotations

import ast
import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import crosscut
from crosscut.cli.exit_codes import FENCED, HOPELESS, INTERRUPTED, MAY_PASS, REFUSED, STOPPED_SHORT
from crosscut.errors import SettingsError
from crosscut.spark.cluster.checks import check_directories_are_shared
from crosscut.spark.cluster.placing import directories_to_share

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
MANIFEST = ROOT / "deploy" / "kubernetes.yaml"
UNIT = ROOT / "deploy" / "crosscut.service"
KUBERNETES = ("1.31", "1.37")
"""The oldest and the newest version whose schemas the manifest has to fit."""


def objects() -> dict[str, Any]:
    """Return the objects of the manifest by kind."""
    found = list(yaml.safe_load_all(MANIFEST.read_text()))
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def spark_settings() -> dict[str, str]:
    lines = objects()["ConfigMap"]["data"]["spark-defaults.conf"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))


def test_the_dockerfile_passes_the_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: its wheel exists for Linux on x86_64 only")
    done = subprocess.run(
        [hadolint, "--no-fail", "--format", "gnu", DOCKERFILE], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_of_the_manifest_fits_the_schema(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    found = objects()
    template = yaml.safe_load(found["ConfigMap"]["data"]["executor.yaml"])
    for one in (*found.values(), template):
        validate.validate(one, version, strict=True)


def test_an_object_with_a_misspelt_field_does_not_fit_the_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    job = objects()["Job"]
    job["spec"]["template"]["spec"]["containers"][0]["volumesMounts"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(job, KUBERNETES[1], strict=True)


def test_the_objects_of_the_manifest_refer_to_each_other() -> None:
    found = objects()
    pod = found["Job"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    settings = spark_settings()
    assert pod["spec"]["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["subjects"][0]["name"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert found["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert settings["spark.driver.host"] == found["Service"]["metadata"]["name"]
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == set(volumes)
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data."
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
    assert settings[f"{prefix}options.claimName"] == claim
    # Workers and driver have to see the checkpoint directory under the same path.
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert settings[f"{prefix}mount.path"] == mounts["data"] == variables["DATA"]
    assert mounts["spark"] == variables["SPARK_CONF_DIR"]
    assert Path(settings["spark.kubernetes.executor.podTemplateFile"]).parent == Path(mounts["spark"])
    items = {item["key"] for name in ("app", "spark") for item in volumes[name]["configMap"]["items"]}
    assert items == set(found["ConfigMap"]["data"])
    # Driver and executors reach each other, whatever else is in the namespace.
    (rule,) = found["NetworkPolicy"]["spec"]["ingress"]
    members = found["NetworkPolicy"]["spec"]["podSelector"]
    assert rule["from"] == [{"podSelector": members}]
    labels = {pod["metadata"]["labels"]["app"], settings["spark.kubernetes.executor.label.app"]}
    assert set(members["matchExpressions"][0]["values"]) == labels
    # Else `parallelism` slots would never be there at once.
    slots = int(settings["spark.executor.instances"]) * int(settings["spark.executor.cores"])
    assert f"parallelism={slots}" in found["ConfigMap"]["data"]["words.py"]


def test_the_directories_of_the_manifest_pass_the_check_of_a_start_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = spark_settings()["spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path"]
    monkeypatch.setenv("DATA", data)
    program = ast.parse(objects()["ConfigMap"]["data"]["words.py"])
    # Its name is not "__main__", so nothing starts.
    names: dict[str, Any] = {"__name__": "words"}
    exec(compile(program, "words.py", "exec"), names)  # noqa: S102
    (call,) = (one for one in ast.walk(program) if isinstance(one, ast.Call) and is_settings(one))
    settings = eval(compile(ast.Expression(call), "words.py", "eval"), names)  # noqa: S307
    graph = names["flow"].compile(settings.parallelism, settings.max_parallelism)
    directories = directories_to_share(graph, settings.store_of(names["flow"].name))
    assert [one.path for one in directories] == [f"{data}/checkpoints", f"{data}/out"]
    check_directories_are_shared(directories, settings.checkpoint_dir, is_said=settings.shared)
    with pytest.raises(SettingsError, match="shared=True"):
        check_directories_are_shared(directories, settings.checkpoint_dir, is_said=False)


def is_settings(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "cc.Settings"


def test_image_and_manifest_have_the_versions_of_this_repository() -> None:
    image = f"crosscut:{crosscut.__version__}"
    (container,) = objects()["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == spark_settings()["spark.kubernetes.container.image"] == image
    dockerfile = DOCKERFILE.read_text()
    assert f"-t {image} " in dockerfile
    (spark,) = re.findall(r"^pyspark==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"ARG SPARK_VERSION={spark}\n" in dockerfile
    user = re.findall(r"^USER (\d+)$", dockerfile, re.MULTILINE)[-1]
    assert objects()["Job"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)


def test_what_the_dockerfile_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


def test_the_version_is_written_down_once() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert 'version = { attr = "crosscut.__version__" }' in project
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"^__version__ *=", path.read_text(), re.MULTILINE)
    ]
    assert found == ["src/crosscut/__init__.py"]


# The unit file of systemd.


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(UNIT.read_text())
    return found


def test_the_unit_starts_a_job_again_only_after_what_may_pass() -> None:
    service = unit()["Service"]
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert service["Restart"] == "on-failure"
    assert prevented == {REFUSED, FENCED, HOPELESS, STOPPED_SHORT, INTERRUPTED} and not prevented & MAY_PASS
    assert service["KillMode"] == "mixed", "a SIGTERM to the workers would prevent the last checkpoint"


def test_systemd_knows_every_key_of_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: it comes with systemd")
    found = unit()
    # Its program and user exist where it is installed.
    found["Service"].update({"ExecStart": "/bin/true", "User": "root"})
    with (tmp_path / "payments.service").open("w") as file:
        found.write(file, space_around_delimiters=False)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "payments.service"], capture_output=True, text=True
    )
    assert [line for line in done.stderr.splitlines() if "payments.service" in line] == []
