// The program itself: exit codes, signals in every thread, sampling from a model folder.
#include <cstdlib>
#include <fstream>
#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "common/wire/safetensors.h"
#include "learner/flat_state.h"
#include "learner/hf_config.h"
#include "learner/llama_shapes.h"

namespace archipelago::learner {
namespace {

const std::string kProgram = std::string(ARCHIPELAGO_BIN_DIR) + "/archipelago-learner";

int shell(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Folder {
  Folder() {
    std::ofstream(path("train.txt")) << std::string(5000, 'x');
    std::ofstream(path("spec.json"))
        << R"({"apiVersion":"archipelago.training/v1alpha1","kind":"DecoupledTraining",)"
        << R"("metadata":{"name":"t"},"spec":{"model":{"hiddenSize":32,"layers":2,"heads":4,)"
        << R"("kvHeads":2,"intermediateSize":48,"vocabSize":256,"contextLength":16},)"
        << R"("data":{"train":{"path":")" << path("train.txt") << R"(","format":"text"}},)"
        << R"("sync":{"fragments":4,"interval":4},"outerOptimizer":{"datacenter":"a"},)"
        << R"("datacenters":[{"name":"a","learnerUnits":1}]}})";
  }
  std::string path(const std::string& name) const { return (dir.path() / name).string(); }
  // Nothing listens there: the learner waits for its outer optimizer.
  std::string command(const std::string& spec) const {
    return kProgram + " --config " + path(spec) +
           " --unit a-0 --datacenter a --outer http://127.0.0.1:9 --admin 127.0.0.1:0"
           " --threads 1 --termination-log " +
           path("last") + " >" + path("out") + " 2>&1";
  }
  std::string last_words() const {
    auto text = read_file(path("last"));
    return text ? *text : "";
  }
  TempDir dir;
};

}  // namespace

TEST_CASE("the program's exit code says what was wrong") {
  const Folder folder;
  CHECK(shell(kProgram + " >/dev/null 2>&1") == 2);
  CHECK(shell(kProgram + " --no-such-flag >/dev/null 2>&1") == 2);
  CHECK(shell(folder.command("none.json")) == 12);
  std::ofstream(folder.path("wrong.json")) << "{\"spec\": {\"modle\": {}}}";
  CHECK(shell(folder.command("wrong.json")) == 12);
  std::filesystem::remove(folder.path("train.txt"));
  CHECK(shell(folder.command("spec.json")) == 13);
  CHECK(folder.last_words() == "data file " + folder.path("train.txt") + " does not exist");
  std::ofstream(folder.path("train.txt")) << "short";
  CHECK(shell(folder.command("spec.json")) == 13);
}

TEST_CASE("SIGTERM is blocked in every thread and ends the learner with 10") {
  const Folder folder;
  // After three seconds libtorch's threads are there, too.
  std::ofstream(folder.path("run.sh"))
      << folder.command("spec.json") << " &\npid=$!\nsleep 3\n"
      << "for t in /proc/$pid/task/*/status; do awk '/SigBlk/ {print substr($2, 13, 1)}' $t; done >"
      << folder.path("masks") << "\nkill -TERM $pid\nwait $pid\necho $? >" << folder.path("code")
      << "\n";
  REQUIRE(shell("bash " + folder.path("run.sh")) == 0);
  const auto code = read_file(folder.path("code"));
  REQUIRE(code);
  CHECK(*code == "10\n");
  CHECK(folder.last_words() == "left on request");
  const auto masks = read_file(folder.path("masks"));
  REQUIRE(masks);
  INFO(*masks);                   // the digit of SigBlk that holds bit 14, SIGTERM, of each thread
  CHECK(masks->size() >= 2 * 7);  // main, signals, admin and five of the exchange
  // One thread shows it clear: the one that sleeps in sigtimedwait, for as long as it sleeps.
  int clear = 0;
  for (const char digit : *masks)
    if (digit != '\n' && std::string("4567cdef").find(digit) == std::string::npos) ++clear;
  CHECK(clear == 1);
}

TEST_CASE("a model folder is sampled, and a broken one is refused by name") {
  const Folder folder;
  config::ModelSpec model;
  model.hidden_size = 32;
  model.layers = 1;
  model.heads = 4;
  model.kv_heads = 2;
  model.intermediate_size = 48;
  model.context_length = 16;
  FlatState state(llama_shapes(model), {});
  state.initialise(1);
  std::vector<wire::SafeTensorView> tensors;
  for (const TensorShape& tensor : state.tensors())
    tensors.push_back({tensor.name, tensor.shape,
                       state.weights().span().subspan(static_cast<std::size_t>(tensor.offset),
                                                      static_cast<std::size_t>(tensor.elements))});
  REQUIRE(wire::write_safetensors(folder.dir.path() / "model.safetensors", tensors));
  std::ofstream(folder.path("config.json")) << hf_config_json(model);
  const std::string sample = kProgram + " sample " + folder.dir.path().string() +
                             " --prompt Hello --tokens 30 --threads 1 --seed 7 >";
  REQUIRE(shell(sample + folder.path("one")) == 0);
  REQUIRE(shell(sample + folder.path("two")) == 0);
  const auto text = read_file(folder.path("one"));
  REQUIRE(text);
  CHECK(text->substr(0, 5) == "Hello");
  CHECK(text->size() == 5 + 30 + 1);
  CHECK(*text == *read_file(folder.path("two")));
  tensors.pop_back();
  REQUIRE(wire::write_safetensors(folder.dir.path() / "model.safetensors", tensors));
  CHECK(shell(sample + "/dev/null 2>" + folder.path("error")) == 1);
  CHECK(read_file(folder.path("error"))->find("no file has model.norm.weight") !=
        std::string::npos);
}

}  // namespace archipelago::learner
