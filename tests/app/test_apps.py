"""The loader: every layout, one bad resource costs only itself, nothing outside the app is read."""

import json
import struct
import zipfile
from pathlib import Path

import pytest

from dispatcher import apps, tree
from sandbox.errors import InputError

AIRLINE = Path(__file__).parents[2] / "examples" / "airline"
CALLBACK = "def before_model_callback(callback_context, llm_request):\n    return None\n"


def lay(root: Path, files: dict[str, object]) -> Path:
    """Files under `root`: text as it is, anything else as JSON."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return root


def desk(**more: object) -> dict[str, object]:
    return {"displayName": "Desk", "beforeModelCallbacks": [{"pythonCode": "code.py"}], **more}


def test_an_export_has_its_agents_callbacks_tools_and_variables() -> None:
    app = apps.load(AIRLINE)
    assert (app.name, app.root_agent, app.warnings) == ("Airline Care", "Front Desk", ())
    front = app.agent("Front Desk")
    assert [callback.name for callback in front.chain("before_model_callback")] == [
        "before_model_callbacks_01",
        "before_model_callbacks_02",
    ]
    assert {callback.hook for callback in front.callbacks} == set(apps.CALLBACK_LISTS)
    assert front.instruction.startswith("Greet the traveller")
    assert app.variables["traveller"] == {"tier": "basic", "verified": False}
    assert (app.tool("fare difference").entry, app.tool("fare difference").timeout_s) == ("fare_difference", 20.0)
    assert app.tool("lookup_booking").source is None


def test_a_disabled_callback_is_known_but_not_in_the_chain() -> None:
    booking = apps.load(AIRLINE).agent("Booking Desk")
    listed = [callback for callback in booking.callbacks if callback.hook == "before_model_callback"]
    assert [callback.disabled for callback in listed] == [False, True]
    assert booking.chain("before_model_callback") == (listed[0],)


@pytest.mark.parametrize(
    "reference",
    [
        "Booking Desk",
        "Booking_Desk",
        "booking-desk",
        "projects/airline-demo/locations/eu/apps/0b6f2f3e/agents/booking-desk",
    ],
)
def test_a_reference_is_a_display_name_a_folder_or_a_resource_name(reference: str) -> None:
    assert apps.load(AIRLINE).agent(reference).name == "Booking Desk"


def test_an_unknown_reference_names_those_there_are() -> None:
    with pytest.raises(InputError, match="there are: Booking Desk, Front Desk"):
        apps.load(AIRLINE).agent("Night Desk")


def test_code_may_stand_in_the_manifest_itself(tmp_path: Path) -> None:
    lay(tmp_path, {"agents/Desk/Desk.json": {"beforeModelCallbacks": [{"pythonCode": CALLBACK}]}})
    (callback,) = apps.load(tmp_path).agent("Desk").callbacks
    assert callback.source.text == CALLBACK
    assert callback.source.name == "agents/Desk/Desk.json#beforeModelCallbacks[0]"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("agents/Desk/before_model_callbacks/guard/python_code.py", "guard"),
        ("agents/Desk/before_model_callbacks/guard.py", "guard"),
        ("agents/Desk/before_model_callback.py", "before_model_callback"),
        ("before_model_callbacks/guard/python_code.py", "guard"),
        ("before_model_callback.py", "before_model_callback"),
    ],
)
def test_a_layout_written_by_hand_loads_without_manifests(tmp_path: Path, file: str, name: str) -> None:
    lay(tmp_path, {file: CALLBACK, "agents/README.md" if file.startswith("agents") else "README.md": "x"})
    (agent,) = apps.load(tmp_path).agents
    (callback,) = agent.callbacks
    assert (callback.name, callback.hook, callback.source.name) == (name, "before_model_callback", file)


def test_callbacks_written_by_hand_are_in_order_of_path_and_tests_are_none(tmp_path: Path) -> None:
    folder = "agents/Desk/before_model_callbacks"
    lay(
        tmp_path,
        {f"{folder}/{name}": CALLBACK for name in ("b/python_code.py", "a/python_code.py", "a/test.py", "test_c.py")},
    )
    assert [callback.name for callback in apps.load(tmp_path).agent("Desk").callbacks] == ["a", "b"]


def test_yaml_manifests_and_snake_case_keys_load(tmp_path: Path) -> None:
    manifest = "display_name: The Desk\nbefore_model_callbacks:\n  - python_code: code.py\n    disabled: true\n"
    lay(tmp_path, {"app.yaml": "display_name: My app\n", "agents/Desk/Desk.yaml": manifest, "code.py": CALLBACK})
    app = apps.load(tmp_path)
    assert app.name == "My app"
    assert app.agent("The Desk").callbacks[0].disabled


def test_literals_are_taken_from_environment_json(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "environment.json": {"tools": {"My_Tool": {"pythonFunction": {"description": "filled in"}}}},
            "tools/My_Tool/My_Tool.json": {
                "displayName": "My Tool",
                "pythonFunction": {"description": "$env_var", "name": "$env_var"},
            },
        },
    )
    app = apps.load(tmp_path)
    assert app.tools[0].description == "filled in"
    (warning,) = app.warnings
    assert (
        warning
        == f"{tmp_path}/tools/My_Tool/My_Tool.json:5: pythonFunction.name: environment.json has no value for $env_var"
    )


BAD = {
    "bad JSON": ({"agents/Bad/Bad.json": '{"displayName": "x",\n oops}'}, "agents/Bad/Bad.json:2: not JSON"),
    "a wrong type": ({"agents/Bad/Bad.json": '{\n"tools": 5}'}, "agents/Bad/Bad.json:2: tools: a list is needed, got a number"),
    "a missing file": (
        {"agents/Bad/Bad.json": {"beforeModelCallbacks": [{"pythonCode": "agents/Bad/nowhere.py"}]}},
        "agents/Bad/Bad.json:4: beforeModelCallbacks[0].pythonCode: agents/Bad/nowhere.py: no such file in the app",
    ),
    "a path that leaves": (
        {"agents/Bad/Bad.json": {"beforeModelCallbacks": [{"pythonCode": "../../etc/passwd.py"}]}},
        "../../etc/passwd.py: leaves the app, refused",
    ),
    "an absolute path": (
        {"agents/Bad/Bad.json": {"beforeModelCallbacks": [{"pythonCode": "/etc/passwd.py"}]}},
        "/etc/passwd.py: leaves the app, refused",
    ),
    "no code": ({"agents/Bad/Bad.json": {"beforeModelCallbacks": [{"description": "x"}]}}, "pythonCode is missing"),
    "an unknown child": ({"agents/Bad/Bad.json": {"childAgents": ["Nobody"]}}, "no such agent; there are: Bad, Desk"),
    "a bad timeout": ({"tools/Bad/Bad.json": {"timeout": "soon"}}, "tools/Bad/Bad.json:2: timeout: 'soon' is no duration like 20s"),
    "a nameless variable": ({"app.json": {"variableDeclarations": [{"schema": {}}]}}, "a variable needs a name"),
    "an unknown root": ({"app.json": {"rootAgent": "Nobody"}}, "app.json:2: rootAgent: agent 'Nobody': no such agent"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_one_bad_resource_is_a_warning_and_the_rest_loads(tmp_path: Path, case: str) -> None:
    files, warning = BAD[case]
    app = apps.load(lay(tmp_path, {"agents/Desk/Desk.json": desk(), "code.py": CALLBACK, **files}))
    assert len(app.warnings) == 1, app.warnings
    assert warning in app.warnings[0]
    assert app.warnings[0].startswith(str(tmp_path))
    assert len(app.agent("Desk").chain("before_model_callback")) == 1


def test_code_that_is_not_utf8_is_a_warning_with_its_line(tmp_path: Path) -> None:
    lay(tmp_path, {"agents/Desk/Desk.json": desk()})
    (tmp_path / "code.py").write_bytes(b"# ok\n# \xe9\n")
    app = apps.load(tmp_path)
    assert app.warnings == (f"{tmp_path}/code.py:2: not UTF-8: byte 0xe9 at offset 7",)


def test_a_link_that_points_out_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("SECRET = 1")
    root = lay(tmp_path / "app", {"agents/Desk/Desk.json": desk()})
    (root / "code.py").symlink_to(secret)
    (root / "agents" / "More").symlink_to(tmp_path)
    app = apps.load(root)
    assert any("a link that points out of the app is not read" in warning for warning in app.warnings)
    assert any("a link to a folder is not followed" in warning for warning in app.warnings)
    assert app.agent("Desk").callbacks == ()


def test_a_link_inside_the_app_is_read(tmp_path: Path) -> None:
    root = lay(tmp_path, {"agents/Desk/Desk.json": desk(), "real.py": CALLBACK})
    (root / "code.py").symlink_to(root / "real.py")
    assert apps.load(root).agent("Desk").callbacks[0].source.text == CALLBACK


def test_no_app_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no app here"):
        apps.load(lay(tmp_path, {"notes.txt": "hello"}))
    with pytest.raises(InputError, match="no such file or folder"):
        apps.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="neither a folder nor a zip"):
        apps.load(tmp_path / "notes.txt")


def test_a_bad_app_json_is_named_when_nothing_else_is_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no app here.*app\.json:1: not JSON"):
        apps.load(lay(tmp_path, {"app.json": "{"}))


# -- zips ------------------------------------------------------------------------------------------


def pack(path: Path, files: dict[str, str], top: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(top + name, content)
    return path


FILES = {"agents/Desk/Desk.json": json.dumps(desk()), "code.py": CALLBACK}


@pytest.mark.parametrize("top", ["", "My_App/"])
def test_a_zip_is_read_like_a_folder_with_or_without_a_top_folder(tmp_path: Path, top: str) -> None:
    app = apps.load(pack(tmp_path / "app.zip", FILES, top))
    assert app.agent("Desk").callbacks[0].source.text == CALLBACK
    assert app.warnings == ()


def test_a_zip_entry_that_leaves_the_app_is_refused(tmp_path: Path) -> None:
    app = apps.load(pack(tmp_path / "app.zip", {**FILES, "../evil.py": "x", "/abs.py": "x"}))
    assert len([warning for warning in app.warnings if "leaves the app" in warning]) == 2
    assert len(app.agents) == 1


def test_a_zip_that_claims_two_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = pack(tmp_path / "app.zip", FILES)
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", 2 * 1024**3)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"unpacks to 2,147,\d{3},\d{3} bytes"):
        apps.load(path)


def test_a_zip_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_ENTRIES", 1)
    with pytest.raises(InputError, match="2 files, at most 1 are read"):
        apps.load(pack(tmp_path / "app.zip", FILES))


def test_a_damaged_zip_entry_costs_only_itself(tmp_path: Path) -> None:
    path = pack(tmp_path / "app.zip", {**FILES, "agents/Other/Other.json": '{"displayName": "Other desk, far away"}'})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"Other desk", b"Otter desk", 1))
    app = apps.load(path)
    assert [agent.name for agent in app.agents] == ["Desk"]
    assert "cannot be unpacked" in app.warnings[0]
