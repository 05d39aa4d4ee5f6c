"""The loader: every layout, one bad resource costs only itself, nothing outside the app is read."""

import json
import struct
import zipfile
from pathlib import Path

import pytest

from dispatcher import apps, resources, syntax, tree
from sandbox.errors import InputError
from sandbox.hooks import HOOKS
from sandbox.invocation import Source

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
    app = apps.load(str(AIRLINE))
    assert (app.name, app.root_agent, app.warnings) == ("Airline Care", "Front Desk", ())
    front = app.agent("Front Desk")
    assert [callback.name for callback in front.chain("before_model_callback")] == [
        "before_model_callbacks_01",
        "before_model_callbacks_02",
    ]
    assert {callback.hook for callback in front.callbacks} == {
        hook for hook in apps.CALLBACK_LISTS if "ces" in HOOKS[hook].dialects
    }
    assert front.instruction.startswith("Greet the traveller")
    assert app.variables["traveller"] == {"tier": "basic", "verified": False}
    assert (app.tool("fare difference").entry, app.tool("fare difference").timeout_s) == ("fare_difference", 20.0)
    assert app.tool("lookup_booking").source is None


def test_a_disabled_callback_is_known_but_not_in_the_chain() -> None:
    booking = apps.load(AIRLINE).agent("Booking Desk")
    listed = [callback for callback in booking.callbacks if callback.hook == "before_model_callback"]
    assert [callback.disabled for callback in listed] == [False, True, False]
    assert booking.chain("before_model_callback") == (listed[0], listed[2])


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
    "a nameless variable leaves the others": (
        {"app.json": {"variableDeclarations": [{"schema": {}}, {"name": "kept"}]}},
        "app.json:3: variableDeclarations[0]: a variable needs a name",
    ),
    "a bad item of a list": (
        {"agents/Bad/Bad.json": {"toolsets": [{"toolIds": []}]}}, "agents/Bad/Bad.json:3: toolsets[0]: toolset is missing",
    ),
    "an unknown toolset": ({"agents/Bad/Bad.json": {"toolsets": [{"toolset": "No"}]}}, "agents/Bad/Bad.json:2: toolsets: toolset 'No'"),
    "an unknown guardrail": ({"app.json": {"guardrails": ["No"]}}, "app.json:2: guardrails: guardrail 'No': no such guardrail"),
    "a guardrail without code": (
        {"guardrails/Bad/Bad.json": {"displayName": "Bad", "llmPolicy": {"prompt": "x"}}},
        "guardrails/Bad/Bad.json:1: only a guardrail with a codeCallback runs here; it is left out",
    ),
    "a rule that is an expression": (
        {"agents/Bad/Bad.json": {"transferRules": [
            {"childAgent": "Desk", "deterministicTransfer": {"expressionCondition": {"expression": "x"}}}]}},
        "agents/Bad/Bad.json:3: transferRules[0]: only a deterministicTransfer with a pythonCodeCondition runs here",
    ),
    "a rule's bad direction": (
        {"agents/Bad/Bad.json": {"transferRules": [{"childAgent": "Desk", "direction": "UP"}]}},
        "transferRules[0].direction: 'UP' is none of PARENT_TO_CHILD, CHILD_TO_PARENT",
    ),
    "a bad tool mode": ({"app.json": {"toolExecutionMode": "FAST"}}, "app.json:2: toolExecutionMode: 'FAST' is none of"),
    "a bad strategy": (
        {"app.json": {"errorHandlingSettings": {"errorHandlingStrategy": "HOPE"}}},
        "app.json:3: errorHandlingSettings.errorHandlingStrategy: 'HOPE' is none of NONE, FALLBACK_RESPONSE",
    ),
    "a bad temperature": (
        {"app.json": {"modelSettings": {"temperature": "warm"}}}, "app.json:3: modelSettings.temperature: a number is needed, got text",
    ),
    "a missing schema": (
        {"toolsets/Bad/Bad.json": {"openApiToolset": {"openApiSchema": "../schema.yaml"}}},
        "toolsets/Bad/Bad.json:3: openApiToolset.openApiSchema: ../schema.yaml: leaves the app, refused",
    ),
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


def test_a_guardrail_has_its_slots_and_what_it_does(tmp_path: Path) -> None:
    block = {"pythonCode": "code.py"}
    lay(
        tmp_path,
        {
            "app.json": {"guardrails": ["No Cards"]},
            "agents/Desk/Desk.json": {"guardrails": ["Manners", "No_Cards"]},
            "guardrails/No_Cards/No_Cards.json": {
                "displayName": "No Cards",
                "codeCallback": {"beforeModelCallback": block, "afterModelCallback": {**block, "disabled": True}},
                "action": {
                    "respondImmediately": {"responses": [{"text": "no", "disabled": True}, {"text": "No cards."}]}
                },
            },
            "guardrails/Manners/Manners.json": {
                "codeCallback": {"afterAgentCallback": block},
                "action": {"transferAgent": {"agent": "Desk"}},
            },
            "guardrails/Off/Off.json": {
                "codeCallback": {"beforeAgentCallback": block},
                "enabled": False,
                "action": {"generativeAnswer": {"prompt": "Decline."}},
            },
            "code.py": "def check(c):\n    return None\n",
        },
    )
    app = apps.load(tmp_path)
    assert app.warnings == ()
    cards, manners = app.guardrails_of(app.agent("Desk"))
    assert (cards.name, cards.action, manners.action) == (
        "No Cards",
        resources.Action("respond", "No cards."),
        resources.Action("transfer", "Desk"),
    )
    assert [slot for slot in resources.SLOTS if cards.at(slot)] == ["before_model"]
    off = next(one for one in app.guardrails if one.name == "Off")
    assert off.at("before_agent") is None
    assert off.action == resources.Action("generate", "Decline.")


def test_the_settings_of_an_app_and_of_its_agents(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "app.json": {
                "modelSettings": {"model": "large", "temperature": 0.2},
                "errorHandlingSettings": {
                    "errorHandlingStrategy": "END_SESSION",
                    "fallbackResponseConfig": {"customFallbackMessages": {"en-US": "Sorry."}, "maxFallbackAttempts": 2},
                    "endSessionConfig": {"escalateSession": True},
                },
            },
            "agents/Desk/Desk.json": {"modelSettings": {"model": "small"}},
        },
    )
    app = apps.load(tmp_path)
    assert app.errors == resources.ErrorHandling({"en-US": "Sorry."}, ends=True, max_attempts=2, escalate=True)
    assert app.agent("Desk").model.over(app.model) == resources.ModelSettings("small", 0.2)


def test_a_transfer_rule_has_its_condition_and_direction(tmp_path: Path) -> None:
    condition = {"pythonCodeCondition": {"pythonCode": "code.py"}}
    rules = [
        {"childAgent": "Night", "deterministicTransfer": condition},
        {"childAgent": "Night", "direction": "CHILD_TO_PARENT", "deterministicTransfer": condition},
    ]
    lay(
        tmp_path,
        {
            "agents/Desk/Desk.json": {"childAgents": ["Night"], "transferRules": rules},
            "agents/Night/Night.json": {},
            "code.py": "def should_trigger_transfer_callback(c):\n    return True\n",
        },
    )
    app = apps.load(tmp_path)
    assert app.warnings == ()
    assert [(rule.child, rule.to_parent, rule.condition.name) for rule in app.agent("Desk").rules] == [
        ("Night", False, "code.py"),
        ("Night", True, "code.py"),
    ]
    assert app.parent(app.agent("Night")) == app.agent("Desk")
    assert app.parent(app.agent("Desk")) is None


def test_a_toolset_has_its_schema_from_the_place_it_names_or_the_usual_one(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "toolsets/Crm/Crm.json": {"displayName": "CRM", "openApiToolset": {"openApiSchema": "schemas/crm.yaml"}},
            "schemas/crm.yaml": "paths: {}",
            "toolsets/Old/Old.json": {"openApiToolset": {}},
            "toolsets/Old/open_api_toolset/open_api_schema.yaml": "paths: {}",
            "toolsets/Mcp/Mcp.json": {"mcpToolset": {"serverAddress": "https://example.com"}},
            "agents/Desk/Desk.json": {"toolsets": [{"toolset": "CRM", "toolIds": ["find"]}]},
        },
    )
    app = apps.load(tmp_path)
    assert app.warnings == ()
    assert [(one.name, one.kind, one.schema) for one in app.toolsets] == [
        ("CRM", "openApiToolset", "paths: {}"),
        ("Mcp", "mcpToolset", ""),
        ("Old", "openApiToolset", "paths: {}"),
    ]
    assert app.agent("Desk").toolsets == (resources.ToolsetUse("CRM", ("find",)),)


def test_two_agents_of_one_name_are_a_warning(tmp_path: Path) -> None:
    lay(tmp_path, {"agents/A/A.json": {"displayName": "Desk"}, "agents/B/B.json": {"displayName": "Desk"}})
    app = apps.load(tmp_path)
    assert app.warnings == (f"{tmp_path}: B: 'Desk' is also the name of A; a reference to it means that one",)
    assert app.agent("Desk").folder == "A"


def test_a_syntax_error_is_a_warning_with_its_line_and_the_callback_keeps_its_place(tmp_path: Path) -> None:
    broken = "def before_model_callback(callback_context, llm_request):\n    return (\n"
    lay(tmp_path, {"agents/Desk/Desk.json": desk(), "code.py": broken})
    app = apps.load(tmp_path)
    assert app.warnings == (f"{tmp_path}/code.py:2: SyntaxError: '(' was never closed",)
    assert [callback.source.text for callback in app.agent("Desk").chain("before_model_callback")] == [broken]


LATE = Source(name="late.py", text="def f(:\n")


def test_code_too_deep_for_the_parser_costs_only_itself() -> None:
    deep = Source(name="deep.py", text="x = " + "-" * 1_000_000 + "1")
    found = list(syntax.problems([deep, Source(name="ok.py", text="x = 1"), LATE]))
    assert [(source.name, line) for source, line, _ in found] == [("deep.py", None), ("late.py", 1)]
    assert found[0][2].startswith("MemoryError: Parser stack overflowed")


def test_code_that_ends_the_parser_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = "    if 'bomb' in text: import os; os._exit(9)\n    try:"
    monkeypatch.setattr(syntax, "_PARSER", syntax._PARSER.replace("    try:", ends))
    found = list(syntax.problems([LATE, Source(name="bomb.py", text="bomb = 1"), Source(name="ok.py", text="x = 1")]))
    assert [(source.name, line) for source, line, _ in found] == [("late.py", 1), ("bomb.py", None)]
    assert found[1][2] == "cannot be parsed: it ended the parser"


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
