// What comes from the API server: lines, watch events, objects, lists.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/line_splitter.h"
#include "operator/kube/list_pages.h"
#include "operator/kube/slim.h"
#include "operator/kube/watch_machine.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("lines: split, joined, CRLF, empty, too long") {
  const std::string text = "one\n\r\ntwo\r\nthree\n\n{\"a\":1}\nlast";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    LineSplitter splitter(16);
    std::vector<std::string> got;
    for (std::size_t i = 0; i < text.size(); i += piece)
      CHECK(splitter.feed(std::string_view(text).substr(i, piece), [&](std::string_view l) {
        got.emplace_back(l);
        return true;
      }));
    CHECK(got == std::vector<std::string>{"one", "two", "three", "{\"a\":1}"});
    CHECK(splitter.buffered() == 4);
  }
  LineSplitter splitter(16);
  std::vector<std::string> got;
  const auto take = [&](std::string_view l) {
    got.emplace_back(l);
    return got.size() < 3;
  };
  CHECK(splitter.feed("ok\n" + std::string(17, 'x'), take));
  CHECK(splitter.feed(std::string(1000, 'x'), take));
  CHECK(splitter.buffered() == 0);  // what is skipped is not kept
  CHECK(splitter.feed("x\nafter\n", take));
  CHECK(splitter.skipped() == 1);
  CHECK(got == std::vector<std::string>{"ok", "after"});
  CHECK(!splitter.feed("stop\nnever\n", take));
  CHECK(got.back() == "stop");
}

TEST_CASE("watch lines: every kind of them") {
  const auto read = [](const std::string& line) { return read_watch_line(Kind::kPod, line, true); };
  const std::string pod =
      R"({"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"}})";
  struct Row {
    std::string line;
    StepKind kind;
    WatchType type;
  };
  for (
      const Row& row : std::vector<Row>{
          {R"({"type":"ADDED","object":)" + pod + "}", StepKind::kEvent, WatchType::kAdded},
          {R"({"type":"MODIFIED","object":)" + pod + "}", StepKind::kEvent, WatchType::kModified},
          {R"({"type":"DELETED","object":)" + pod + "}", StepKind::kEvent, WatchType::kDeleted},
          {R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}})", StepKind::kEvent,
           WatchType::kBookmark},
          {R"({"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"7","creationTimestamp":null},"spec":{"containers":null},"status":{}}})",
           StepKind::kEvent, WatchType::kBookmark},
          {R"({"type":"BOOKMARK","object":{"metadata":{}}})", StepKind::kSkip, {}},
          {R"({"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410,"reason":"Expired","message":"too old"}})",
           StepKind::kGone,
           {}},
          {R"({"type":"ERROR","object":{"code":410}})", StepKind::kGone, {}},
          {R"({"type":"ERROR","object":{"reason":"Gone"}})", StepKind::kGone, {}},
          {R"({"type":"ERROR","object":{"kind":"Status","code":500}})", StepKind::kFailed, {}},
          {R"({"type":"ERROR"})", StepKind::kFailed, {}},
          {R"({"type":"ERROR","object":null})", StepKind::kFailed, {}},
          {R"({"kind":"Status","apiVersion":"v1","code":410,"reason":"Expired"})",
           StepKind::kGone,
           {}},
          {R"({"type":"ADDED","object":{"kind":"Status","apiVersion":"v1","code":500}})",
           StepKind::kFailed,
           {}},
          {R"({"type":"ADDED","object":[1]})", StepKind::kSkip, {}},
          {R"({"type":"ADDED","object":{"metadata":{"resourceVersion":"7"}}})",
           StepKind::kSkip,
           {}},
          {R"({"type":"ADDED","object":{"kind":"Node","metadata":{"name":"x"}}})",
           StepKind::kSkip,
           {}},
          {R"({"type":"ADDED"})", StepKind::kSkip, {}},
          {R"({"type":7,"object":)" + pod + "}", StepKind::kSkip, {}},
          {R"({"type":"PATCHED","object":)" + pod + "}", StepKind::kSkip, {}},
          {"[]", StepKind::kSkip, {}},
          {"{", StepKind::kSkip, {}},
          {"\xff\xfe", StepKind::kSkip, {}}}) {
    const WatchStep step = read(row.line);
    INFO(row.line << " " << step.why);
    CHECK(step.kind == row.kind);
    if (row.kind != StepKind::kEvent) continue;
    CHECK(step.event.type == row.type);
    CHECK(step.event.resource_version == "7");
    CHECK(step.event.object.has_value() == (row.type != WatchType::kBookmark));
  }
}

TEST_CASE("odd contents of an object never break its reading") {
  for (
      const char* line :
      {R"({"type":"ADDED","object":{"metadata":{"name":"a","labels":[1],"annotations":"x","ownerReferences":{}},"spec":null,"status":[]}})",
       R"({"type":"ADDED","object":{"metadata":{"name":"a","managedFields":{}},"spec":[1],"status":{"conditions":[1,null,"x"],"containerStatuses":[null,{"state":[]},{"state":{"waiting":7}}]}}})",
       R"({"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"datacenters":"two"},"status":"s"}})"})
    for (const Kind kind : {Kind::kPod, Kind::kTraining, Kind::kNode, Kind::kService,
                            Kind::kConfigMap, Kind::kClaim}) {
      const WatchStep step = read_watch_line(kind, line, true);
      INFO(line);
      CHECK(step.kind == StepKind::kEvent);
      CHECK(step.event.object->name() == "a");
      CHECK(step.event.object->kind() == kind);
    }
}

TEST_CASE("slim pods and nodes keep what plans read") {
  json pod = json::parse(
      R"({"metadata":{"name":"a","namespace":"n","uid":"u","labels":{"l":"1","archipelago.training/unit":"a-0"},
    "annotations":{"x":"y"},"finalizers":["f"],
    "creationTimestamp":"2026-01-01T00:00:00Z","deletionTimestamp":"2026-01-01T00:01:00Z","managedFields":[{}],
    "ownerReferences":[{"uid":"z","kind":"Z","name":"z"},
                       {"uid":"o","controller":true,"kind":"K","name":"r","apiVersion":"v","blockOwnerDeletion":true}]},
    "spec":{"nodeName":"node","containers":[{"name":"c"}],"volumes":[{}]},
    "status":{"phase":"Failed","reason":"NodeLost","message":"m","podIP":"10.0.0.1","hostIP":"h","startTime":"2026-01-01T00:00:00Z",
      "conditions":[{"type":"Ready","status":"False","reason":"r","lastTransitionTime":"t","lastProbeTime":null},
                    {"type":"Initialized","status":"True"},{"type":"DisruptionTarget","status":"True","reason":"d","message":"dm"}],
      "containerStatuses":[{"name":"c","restartCount":2,"image":"i","lastState":{"terminated":{}},
        "state":{"terminated":{"exitCode":137,"reason":"OOMKilled","message":"mm","containerID":"x"}}}]}})");
  const json slim = slimmed(Kind::kPod, pod, true);
  CHECK(slim["metadata"]["labels"] == json{{"archipelago.training/unit", "a-0"}});
  CHECK(slim["metadata"]["ownerReferences"] ==
        json::parse(R"([{"uid":"o","controller":true,"kind":"K","name":"r"}])"));
  CHECK(slim["metadata"]["deletionTimestamp"] == pod["metadata"]["deletionTimestamp"]);
  CHECK(!slim["metadata"].contains("managedFields"));
  CHECK(!slim["metadata"].contains("annotations"));
  CHECK(slim["spec"] == json{{"nodeName", "node"}});
  for (const char* key : {"phase", "reason", "message", "podIP", "startTime"})
    CHECK(slim["status"][key] == pod["status"][key]);
  CHECK(!slim["status"].contains("hostIP"));
  CHECK(slim["status"]["conditions"].size() == 2);
  CHECK(slim["status"]["containerStatuses"][0]["state"]["terminated"] ==
        json{{"exitCode", 137}, {"reason", "OOMKilled"}, {"message", "mm"}});
  const json whole = slimmed(Kind::kPod, pod, false);
  CHECK(whole["spec"] == pod["spec"]);
  CHECK(!whole["metadata"].contains("managedFields"));
  const json node =
      slimmed(Kind::kNode,
              json::parse(R"({"metadata":{"name":"n"},"spec":{"taints":[{"key":"k"}],"podCIDR":"x"},
    "status":{"images":[1],"conditions":[{"type":"Ready","status":"True"},{"type":"DiskPressure","status":"False"}]}})"),
              true);
  CHECK(node["spec"] == json{{"taints", json::array({{{"key", "k"}}})}});
  CHECK(node["status"]["conditions"].size() == 1);
  CHECK(!node["status"].contains("images"));
  const json run = slimmed(Kind::kTraining, json::parse(R"({"metadata":{"name":"r","annotations":{
    "kubectl.kubernetes.io/last-applied-configuration":"{}","mine":"kept"}},"spec":{"a":1},"status":{"b":2}})"),
                           true);
  CHECK(run["metadata"]["annotations"] == json{{"mine", "kept"}});
  CHECK(run["spec"] == json{{"a", 1}});
}

TEST_CASE("lists: pages, an expired token, a page that is too large, items that can't be read") {
  std::vector<Request> sent;
  std::vector<Result<json>> answers;
  std::vector<std::string> skipped;
  const ListHooks hooks{[&](const Request& r) -> Result<json> {
                          sent.push_back(r);
                          REQUIRE(sent.size() <= answers.size());
                          return answers[sent.size() - 1];
                        },
                        [&](const std::string& why) { skipped.push_back(why); }};
  const auto page = [](std::vector<std::string> names, const std::string& next) {
    json items = json::array();
    for (const std::string& n : names) items.push_back({{"metadata", {{"name", n}}}});
    return json{{"metadata", {{"resourceVersion", "9"}, {"continue", next}}}, {"items", items}};
  };
  const auto run = [&] { return list_pages(Kind::kPod, "", "a=b", true, hooks); };
  SECTION("pages are one list") {
    answers = {page({"a", "b"}, "t1"), page({"c"}, "")};
    const auto got = run();
    REQUIRE(got);
    CHECK(got->items.size() == 3);
    CHECK(got->resource_version == "9");
    CHECK(got->items[2].kind() == Kind::kPod);
    CHECK(has(sent[1].path, "continue=t1"));
    CHECK(has(sent[1].path, "labelSelector=a%3Db"));
  }
  SECTION("a token that expired starts over, then asks for all at once") {
    answers = {page({"a"}, "t1"), fail(ErrorKind::kFenced, ""), page({"b"}, "t2"),
               fail(ErrorKind::kFenced, ""), page({"c", "d"}, "")};
    const auto got = run();
    REQUIRE(got);
    REQUIRE(got->items.size() == 2);
    CHECK(got->items[0].name() == "c");
    CHECK(!has(sent[4].path, "limit="));
  }
  SECTION("for ever expired is an error, not a loop") {
    answers.assign(10, fail(ErrorKind::kFenced, ""));
    CHECK(run().error().kind == ErrorKind::kFenced);
    CHECK(sent.size() == 3);
  }
  SECTION("smaller pages for what is too large") {
    answers = {fail(ErrorKind::kTooLarge, ""), page({"a"}, "")};
    CHECK(run()->items.size() == 1);
    CHECK(has(sent[1].path, "limit=100"));
  }
  SECTION("one bad item fails nothing") {
    json bad = page({"a", "b"}, "");
    bad["items"].insert(bad["items"].begin() + 1, json::array());
    bad["items"].push_back({{"metadata", "x"}});
    answers = {bad};
    CHECK(run()->items.size() == 2);
    CHECK(skipped.size() == 2);
  }
  SECTION("an answer without a version is none") {
    answers = {json{{"items", json::array()}}};
    CHECK(run().error().kind == ErrorKind::kCorrupt);
  }
}

}  // namespace archipelago::op::kube
