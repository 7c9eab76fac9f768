"""Other processes pause and resume the memory of a device by HTTP."""

import gc
import http.client
import json
import socket
import threading

import pytest

import libstagehand as sh

MIB = 1 << 20
TOKEN = "token-of-the-tests"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


@pytest.fixture
def device():
    with sh.Device("host", budget_bytes=48 * MIB, backend_options="capacity=64MiB") as device:
        yield device
    gc.collect()


def serve(device, *arguments, **options):
    try:
        return device.serve_control(*arguments, **options)
    except sh.Error as error:
        if error.status is sh.Status.ERROR_BACKEND_LOAD:
            pytest.skip("this package has no plugin for the control")
        raise


def ask(control, method, target, body=None, token=None):
    """Returns the status and the body."""
    if control.address.startswith("/"):
        connection = UnixConnection(control.address)
    else:
        connection = http.client.HTTPConnection(control.address, timeout=60)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, target, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_unix_socket(device, tmp_path):
    weights = device.alloc(2 * MIB, tag="weights")
    with serve(device, tmp_path / "control") as control:
        assert control.address == str(tmp_path / "control")
        status, text = ask(control, "POST", "/release_memory_occupation", {"tags": ["weights"]})
        assert status == 200 and json.loads(text)["device_bytes"] == 2 * MIB
        assert device.occupancy("weights").state is sh.OccupancyState.RELEASED
        assert json.loads(ask(control, "GET", "/is_sleeping")[1]) == {"is_sleeping": True}
        assert ask(control, "POST", "/release_memory_occupation", {"tags": ["weights"]})[0] == 409
        assert ask(control, "POST", "/wake_up")[0] == 200
        assert control.port == 0
    assert not (tmp_path / "control").exists()
    assert device.occupancy("weights").state is sh.OccupancyState.RUNNING
    control.close()  # once more does nothing
    weights.close()


def test_a_port_with_a_token(device):
    with serve(device, "127.0.0.1:0", token=TOKEN) as control:
        assert control.address == f"127.0.0.1:{control.port}"
        assert ask(control, "GET", "/memory")[0] == 401
        status, text = ask(control, "GET", "/memory", token=TOKEN)
        assert status == 200 and json.loads(text)["device"] == "host:0"


def test_wrong_arguments(device, tmp_path):
    for address, token in (("127.0.0.1:0", None), ("0.0.0.0:0", TOKEN), (tmp_path / "x", "short")):
        with pytest.raises(sh.UsageError):
            device.serve_control(address, token=token)
    device.close()
    with pytest.raises(sh.UsageError):
        device.serve_control(tmp_path / "x")


def test_functions_of_on_pause_run_on_a_thread_of_the_library(device, tmp_path):
    threads, stopped = [], []

    def before(tags):
        threads.append(threading.get_ident())
        with pytest.raises(sh.UsageError) as raised:
            control.close()  # it would wait for itself
        stopped.append(raised.value.status)

    memory = device.alloc(MIB, tag="weights")
    with device.on_pause(before=before), serve(device, tmp_path / "control") as control:
        assert ask(control, "POST", "/sleep")[0] == 200
        assert ask(control, "POST", "/wake_up")[0] == 200
    assert stopped == [sh.Status.ERROR_INVALID_STATE] and threads != [threading.get_ident()]
    memory.close()


def test_an_exception_of_on_pause_is_the_message(device, tmp_path):
    def before(tags):
        raise RuntimeError(f"{tags} are in use")

    with device.alloc(MIB, tag="weights"), device.on_pause(before=before), serve(device, tmp_path / "c") as control:
        status, text = ask(control, "POST", "/sleep")
        assert status == 409 and "['weights'] are in use" in json.loads(text)["message"]


def test_metrics_are_read_by_prometheus(device, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    with device.alloc(2 * MIB, tag='a "tag"\\\n'), serve(device, tmp_path / "control") as control:
        ask(control, "POST", "/sleep")
        families = {
            family.name: family for family in parser.text_string_to_metric_families(ask(control, "GET", "/metrics")[1])
        }
        states = {sample.labels["state"]: sample.value for sample in families["stagehand_tag_state"].samples}
        assert states == {"running": 0, "releasing": 0, "released": 1, "resuming": 0, "mixed": 0, "lost": 0}
        (sample,) = families["stagehand_tag_host_bytes"].samples
        assert sample.value == 2 * MIB and sample.labels == {"device": "host:0", "tag": 'a "tag"\\\n'}
        assert families["stagehand_tag_cycles"].type == "counter"
        assert families["stagehand_sleeping"].samples[0].value == 1
        assert all(family.documentation and family.type != "unknown" for family in families.values())
        ask(control, "POST", "/wake_up")
