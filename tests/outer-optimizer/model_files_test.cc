// The model routes: a run that trains, one that is finished, a folder that nobody writes any more.
#include <chrono>
#include <fstream>
#include <map>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/wire/safetensors.h"
#include "outer-optimizer/model_server.h"
#include "tests/outer-optimizer/daemon_fixture.h"

namespace archipelago::outer {
namespace {

std::unique_ptr<Daemon> start(const DaemonOptions& options) {
  auto daemon = Daemon::start(options, Logger::null());
  if (!daemon) FAIL(daemon.error().describe());
  return std::move(*daemon);
}

http::ClientOptions to(int port) {
  http::ClientOptions options;
  options.server = {"127.0.0.1", port};
  return options;
}

http::Response get(int port, const std::string& path) {
  http::Client client(to(port));
  auto reply = client.request("GET", path);
  if (!reply) FAIL(reply.error().describe());
  return std::move(*reply);
}

std::string content(const std::filesystem::path& path) {
  auto text = read_file(path);
  if (!text) FAIL(text.error().describe());
  return std::move(*text);
}

// Every file of a folder with its time and size: what changes shows.
std::map<std::string, std::string> picture(const std::filesystem::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const auto time = entry.last_write_time().time_since_epoch().count();
    out[entry.path().string()] =
        std::to_string(time) +
        (entry.is_regular_file() ? " " + std::to_string(entry.file_size()) : "");
  }
  return out;
}

void train(const std::filesystem::path& folder, std::int64_t budget, std::int64_t upto) {
  auto daemon = start(test_options(folder, budget));
  FakeLearner learner(daemon->port(), "dc-0");
  REQUIRE(learner.hello());
  REQUIRE(learner.seed());
  learner.run_until(upto);
  if (upto == budget) REQUIRE(daemon->wait() == Daemon::End::kFinished);
}

TEST_CASE("a live run serves its kept checkpoints as models, on both ports, then the final one") {
  const TempDir folder;
  auto daemon = start(test_options(folder.path(), 10));  // a checkpoint every four steps
  FakeLearner learner(daemon->port(), "dc-0");
  CHECK(get(daemon->admin_port(), "/v1/model").status == 404);
  REQUIRE(learner.hello());
  REQUIRE(learner.seed());
  learner.run_until(5);
  while (status_of(*daemon).last_checkpoint_step < GlobalStep(4)) REQUIRE(learner.progress());

  for (const int port : {daemon->port(), daemon->admin_port()}) {
    const auto list = get(port, "/v1/model");
    CHECK(list.body == R"(["config.json","model.safetensors"])");
    CHECK(list.header("x-archipelago-step") == "4");
    for (const std::string step : {"0", "4"}) {
      const auto out = folder.path() / ("at-" + step);
      REQUIRE(export_checkpoint(folder.path(), GlobalStep(std::stoll(step)), out));
      for (const char* name : {"config.json", "model.safetensors"}) {
        const auto reply = get(port, std::string("/v1/model/") + name + "?step=" + step);
        CHECK(reply.status == 200);
        CHECK(reply.body == content(out / name));
        CHECK(reply.header("x-archipelago-step") == step);
      }
    }
    CHECK(get(port, "/v1/model/model.safetensors").body ==
          content(folder.path() / "at-4" / "model.safetensors"));
    const auto missing = get(port, "/v1/model?step=3");
    CHECK(missing.status == 404);
    CHECK(missing.body.find("given 3, checkpoints are kept of 0, 4") != std::string::npos);
    CHECK(get(port, "/v1/model?step=x").status == 400);
    CHECK(get(port, "/v1/model/none.txt").status == 404);
    CHECK(get(port, "/v1/model/..%2f..%2fepoch").status != 200);
  }
  learner.run_until(10);
  CHECK(daemon->wait() == Daemon::End::kFinished);
  const auto last = get(daemon->admin_port(), "/v1/model/model.safetensors");
  CHECK(last.body == content(folder.path() / "model" / "model.safetensors"));
  CHECK(last.header("x-archipelago-step").empty());
  CHECK(get(daemon->admin_port(), "/v1/model/model.safetensors?step=4").body ==
        content(folder.path() / "at-4" / "model.safetensors"));
}

TEST_CASE("a damaged checkpoint is an error that names the file, not a model") {
  const TempDir folder;
  train(folder.path(), 20, 5);
  const auto path = folder.path() / "checkpoints" / "4" / "fragment-1.bin";
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('!');
  }
  auto server = ModelServer::start(folder.path(), {"127.0.0.1", 0}, Logger::null());
  REQUIRE(server);
  const auto reply = get((*server)->port(), "/v1/model/model.safetensors");
  CHECK(reply.status == 500);
  CHECK(reply.body.find("fragment-1.bin: checksum differs") != std::string::npos);
  CHECK(get((*server)->port(), "/v1/model/model.safetensors?step=0").status == 200);
}

TEST_CASE("readers of the model are bounded, and each gives its place back") {
  const TempDir folder;
  train(folder.path(), 20, 5);
  ModelFiles models(folder.path(), [] { return false; });
  http::Request request;
  request.args = {"model.safetensors"};
  std::vector<http::Reply> replies;
  for (int i = 0; i < ModelFiles::kMaxReaders; ++i) {
    auto reply = models.get(request);
    REQUIRE(reply);
    replies.push_back(std::move(*reply));
  }
  // Who reads keeps its bytes when the checkpoint is pruned.
  const std::string before(reinterpret_cast<const char*>(replies[0].parts[0].bytes.data()), 40);
  CHECK(models.get(request).error().kind == ErrorKind::kUnavailable);
  CHECK(models.list(request));
  std::filesystem::remove_all(folder.path() / "checkpoints" / "4");
  CHECK(std::string(reinterpret_cast<const char*>(replies[0].parts[0].bytes.data()), 40) == before);
  replies.pop_back();
  CHECK(models.get(request));
}

TEST_CASE("the model server reads a folder, beside its owner too, and changes nothing") {
  const bool finished = GENERATE(true, false);
  const TempDir folder;
  train(folder.path(), 6, finished ? 6 : 5);
  auto owner = finished ? nullptr : start(test_options(folder.path(), 6));
  const auto before = picture(folder.path());
  {
    auto server = ModelServer::start(folder.path(), {"127.0.0.1", 0}, Logger::null());
    REQUIRE(server);
    const int port = (*server)->port();
    CHECK(get(port, "/healthz").status == 200);
    CHECK(get(port, "/readyz").status == 200);
    CHECK(get(port, "/statusz").status == 404);
    CHECK(get(port, "/v1/model").body == R"(["config.json","model.safetensors"])");
    const auto tensors = get(port, "/v1/model/model.safetensors");
    REQUIRE(tensors.status == 200);
    if (finished)
      CHECK(tensors.body == content(folder.path() / "model" / "model.safetensors"));
    else
      CHECK(tensors.header("x-archipelago-step") == "4");
    const auto head =
        wire::parse_safetensors_header(std::as_bytes(std::span(tensors.body)), tensors.body.size());
    REQUIRE(head);
    CHECK(head->tensors.size() == 5);
  }
  if (finished) CHECK(picture(folder.path()) == before);  // an owner writes when it likes
}

TEST_CASE("a model folder that lacks a file of the model is not the final one") {
  const TempDir folder;
  train(folder.path(), 6, 6);
  CHECK(holds_final_model(folder.path()));
  std::filesystem::remove(folder.path() / "model" / "config.json");
  CHECK_FALSE(holds_final_model(folder.path()));
  const TempDir empty;
  CHECK_FALSE(holds_final_model(empty.path()));
  const auto refused = ModelServer::start(empty.path(), {"127.0.0.1", 0}, Logger::null());
  CHECK(refused.error().kind == ErrorKind::kRefused);
}

}  // namespace
}  // namespace archipelago::outer
