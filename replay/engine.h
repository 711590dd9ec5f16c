#pragma once
// Learners and the numeric outer step in one process, with no HTTP, journal or clock: whoever
// drives it says what happens in which order (tape replay; quality experiments under SyncerCore in
// virtual time). It makes the very additions of the daemons, so published bytes are theirs bit for
// bit (protocol.md §2.7, §2.9; paper E.2).
//
// Memory: a trainer a learner, 3 x 4N for the outer arrays, and every published version that is
// still somebody's base or that the caller holds. One thread.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/config/spec.h"
#include "common/diloco/messages.h"
#include "learner/fragments.h"
#include "learner/trainer.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::replay {

struct EngineOptions {
  std::vector<learner::TensorShape> shapes;
  std::int32_t fragments = 24;  // P
  diloco::FragmentScheme scheme = diloco::FragmentScheme::kBalanced;
  bool published_bf16 = false;
  codec::Codec uplink = codec::Codec::kInt4;
  std::string init_path;  // a model folder with the first weights; empty: the seed's
  double blend = 0;       // overwrite: blend x own + (1 - blend) x published
  config::Precision recovery_precision = config::Precision::kBf16;
  int threads = 1;  // of the merge; its bits don't depend on it
};

// An encoded contribution, as the outer optimizer would have stored it.
struct Upload {
  std::int32_t fragment = 0;
  std::vector<std::byte> payload;
  std::vector<double> norm2;
  diloco::Counters counters;
};

// A published version of one fragment.
struct Published {
  GlobalStep version;
  outer::SharedBuffer bytes;
};

class Engine {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Engine>> create(EngineOptions options);

  [[nodiscard]] const learner::FragmentMap& fragments() const { return fragments_; }
  [[nodiscard]] const diloco::Layout& layout() const { return layout_; }

  // --- learners, by a name of the caller's choice
  // kConflict: the name is taken; kInvalid: a trainer of other tensors.
  [[nodiscard]] Status join(const std::string& name, std::unique_ptr<learner::Trainer> trainer);
  void leave(const std::string& name);
  [[nodiscard]] Result<learner::StepResult> step(const std::string& name,
                                                 std::span<const std::int32_t> tokens,
                                                 double learning_rate);
  // Parameters of the seed, moments fresh, without publishing them.
  [[nodiscard]] Status initialise(const std::string& name, std::uint64_t init_seed);
  // base - theta of fragment p, encoded, with the counters since its last overwrite.
  [[nodiscard]] Result<Upload> snapshot(const std::string& name, std::int32_t p);
  // Overwrites p with that version, which becomes the base.
  [[nodiscard]] Status apply(const std::string& name, std::int32_t p, const Published& version);
  [[nodiscard]] Result<std::vector<std::byte>> inner_state(const std::string& name) const;
  [[nodiscard]] Status restore_inner_state(const std::string& name,
                                           std::span<const std::byte> state);
  [[nodiscard]] bool holds(const std::string& name, std::int32_t p, GlobalStep base) const;

  // --- outer optimizer
  // Version 0: the initial parameters of a learner's trainer.
  [[nodiscard]] Status seed(const std::string& name, std::uint64_t init_seed);
  struct Contribution {
    const Upload* upload = nullptr;
    diloco::Counters weight;  // usually the upload's own
  };
  // Members in order of unit name. Returns whether anything was applied.
  [[nodiscard]] Result<bool> merge(GlobalStep t, std::int32_t p, const outer::OuterRules& rules,
                                   const std::vector<Contribution>& members);
  void publish_masters(GlobalStep version);
  [[nodiscard]] Published published(std::int32_t p) const;  // the newest; null before the seed
  [[nodiscard]] static std::uint64_t digest(const Published& version);  // xxh3, as on tapes

 private:
  struct Learner {
    std::unique_ptr<learner::Trainer> trainer;
    std::vector<Published> bases;            // by fragment
    std::vector<diloco::Counters> counters;  // by fragment
  };
  Engine() = default;
  [[nodiscard]] Result<Learner*> find(const std::string& name);

  EngineOptions options_;
  diloco::Layout layout_;
  learner::FragmentMap fragments_;
  std::unique_ptr<outer::FragmentStore> store_;
  std::map<std::string, Learner> learners_;
};

}  // namespace archipelago::replay
