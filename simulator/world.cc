#include "simulator/world.h"

#include <algorithm>
#include <sstream>

#include "simulator/parties.h"

namespace archipelago::simulator {

using namespace diloco;

World::World(const WorldConfig& c) : config(c), rng(c.seed) {
  const std::size_t units = config.step_seconds.size();
  config.up.resize(units, config.up.empty() ? 0.05 : config.up.back());
  config.down.resize(units, config.down.empty() ? 0.05 : config.down.back());
  config.sequences_per_step.resize(
      units, config.sequences_per_step.empty() ? 4 : config.sequences_per_step.back());
  for (std::size_t u = config.datacenters.size(); u < units; ++u)
    config.datacenters.emplace_back(u % 2 == 0 ? "a" : "b");
  config.fragment_size.resize(static_cast<std::size_t>(config.sync.fragments), 1.0);
  disk.master.assign(static_cast<std::size_t>(config.sync.fragments), 0);
  current.resize(units);
  incarnations.assign(units, 0);
}

void World::violate(const std::string& what) {
  if (violation.empty()) violation = "t=" + std::to_string(queue.now()) + ": " + what;
}

void World::start_syncer() {
  syncer = std::make_unique<SyncerProcess>();
  ++disk.epoch;
  ++syncer_starts;
  SyncerConfig sync = config.sync;
  sync.lineage_draw = syncer_starts;
  syncer->core = std::make_unique<SyncerCore>(sync, disk.epoch, disk.state, queue.time());
  syncer->core->set_layout("layout",
                           std::vector<double>(static_cast<std::size_t>(config.sync.fragments),
                                               1.0 / config.sync.fragments));
  if (syncer_starts > 1) {
    returned_at = queue.now();
    after_return.clear();
    first_commit_after = 0;
  }
}

void World::kill_syncer() { syncer.reset(); }

void World::replace_disk(const std::optional<Disk>& with) {
  disk_replaced = true;
  if (with) {
    disk = *with;
    return;
  }
  // What the learners know decides which commits stand: rebuilt().
  disk.state.reset();
  disk.epoch = 0;
  disk.master.assign(static_cast<std::size_t>(config.sync.fragments), 0);
  disk.published.clear();
  backup.reset();
}

void World::note_published(int fragment, std::int64_t version) {
  history[{syncer->core->lineage(), fragment, version}] = disk.published.at({fragment, version});
}

void World::undo_commits_after(std::int64_t t) {
  disk.commits.erase(disk.commits.upper_bound(t), disk.commits.end());
  disk.consumed.erase(disk.consumed.upper_bound(t), disk.consumed.end());
}

void World::take_base(const UnitKey& who, int fragment, GlobalStep version, double value) {
  const auto last = syncer->core->rebuild_staged(who, fragment, version, queue.time());
  if (!last) return;
  syncer->rebuilt[fragment] = value;
  if (*last) rebuilt();
}

// No global step that one of those that said hello had heard of is taken back.
void World::rebuilt() {
  ++rebuilds;
  const GlobalStep committed = syncer->core->state().committed;
  const auto newest =
      std::max_element(syncer->claims.begin(), syncer->claims.end(),
                       [](const auto& a, const auto& b) { return a.epoch < b.epoch; });
  for (const auto& claim : syncer->claims)
    if (claim.lineage == newest->lineage && claim.committed > committed)
      violate("a rebuilt run stands before a published global step");
  undo_commits_after(committed.value);
  if (static_cast<std::int64_t>(disk.commits.size()) != committed.value)
    violate("a rebuilt run stands at a global step that never was");
  const auto versions = syncer->core->versions();
  for (int p = 0; p < config.sync.fragments; ++p) {
    const auto i = static_cast<std::size_t>(p);
    disk.master[i] = syncer->rebuilt.at(p);
    disk.published[{p, versions[i].value}] = disk.master[i];
    note_published(p, versions[i].value);
  }
}

void World::start_learner(int unit) {
  const auto u = static_cast<std::size_t>(unit);
  current[u] = std::make_shared<LearnerProcess>(*this, unit, ++incarnations[u]);
  all.push_back(current[u]);
  current[u]->start();
}

void World::call(const std::shared_ptr<LearnerProcess>& from,
                 std::function<std::function<void()>()> serve, std::function<void()> fail) {
  const auto down = [from, this] { return from->link_down_until > queue.now() || !syncer; };
  const bool lost = rng.chance(config.loss);
  const bool answer_lost = rng.chance(config.loss);
  const bool twice = rng.chance(config.duplicate);
  auto settled = std::make_shared<bool>(false);
  if (fail)
    queue.after(1.0 + 2 * config.delay, [from, settled, fail] {
      if (!*settled && from->alive) {
        *settled = true;
        fail();
      }
    });
  if (lost) return;
  const auto deliver = [this, from, serve, down, settled, answer_lost](bool first) {
    if (down()) return;
    auto answer = serve();
    carry_out_effects();
    answer_held();
    if (!first || answer_lost) return;
    queue.after(config.delay, [from, settled, answer, down] {
      if (*settled || !from->alive || from->link_down_until > from->world.queue.now()) return;
      *settled = true;
      if (answer) answer();
    });
  };
  queue.after(config.delay, [deliver] { deliver(true); });
  if (twice)
    queue.after(config.delay + rng.uniform(0, 3), [deliver, from] {
      if (from->alive) deliver(false);
    });
}

void World::carry_out_effects() {
  if (!syncer) return;
  // Of an older disk all that is served now counts under another lineage.
  if (const std::int64_t lineage = syncer->core->lineage(); lineage != noted_lineage) {
    noted_lineage = lineage;
    for (const auto& [key, value] : disk.published)
      history[{lineage, key.first, key.second}] = value;
  }
  for (const auto& effect : syncer->core->take_effects()) {
    if (std::holds_alternative<PersistState>(effect)) {
      if (!disk.state) disk.state.emplace();
      disk.state->merge_newer(syncer->core->state());
    } else if (const auto* raise = std::get_if<RaiseEpoch>(&effect)) {
      disk.epoch = raise->epoch;
    } else if (const auto* merge = std::get_if<StartMerge>(&effect)) {
      run_merge(*merge);
    } else if (const auto* drop = std::get_if<DropUpload>(&effect)) {
      syncer->stored.erase(key_text(drop->key));
    } else if (std::holds_alternative<PublishFinal>(effect)) {
      for (int p = 0; p < config.sync.fragments; ++p) {
        disk.published[{p, config.sync.budget.value + 1}] =
            disk.master[static_cast<std::size_t>(p)];
        note_published(p, config.sync.budget.value + 1);
      }
      if (config.observer != nullptr)
        config.observer->published_final(GlobalStep(config.sync.budget.value + 1));
      syncer->core->final_published(queue.time());
    } else if (std::holds_alternative<WriteModel>(effect)) {
      syncer->core->model_written(queue.time());
    }
  }
}

void World::run_merge(const StartMerge& merge) {
  if (merge.t.value != static_cast<std::int64_t>(disk.commits.size()) + 1)
    violate("commits out of order");
  for (const auto& member : merge.members)
    if (!syncer->stored.contains(key_text(member.key))) violate("a member without a stored upload");
  if (merge.fragment != kNoFragment && static_cast<int>(merge.members.size()) < config.sync.quorum)
    violate("merged below the quorum");
  if (!std::is_sorted(merge.members.begin(), merge.members.end(),
                      [](const auto& a, const auto& b) { return a.key.who.unit < b.key.who.unit; }))
    violate("members are not in order of unit name");
  const std::int64_t start = syncer_starts;
  queue.after(config.merge_seconds, [this, merge, start] { commit(merge, start); });
}

void World::commit(const StartMerge& merge, std::int64_t start) {
  if (!syncer || syncer_starts != start)
    return;  // died before the record was durable: nothing happened
  std::vector<UploadKey> members;
  double sum = 0, weight = 0;
  std::set<std::string> seen;
  for (const auto& member : merge.members) {
    const double w = static_cast<double>(member.counters.tokens) *
                     static_cast<double>(member.counters.tokens) /
                     static_cast<double>(member.counters.steps);
    sum += w * syncer->stored.at(key_text(member.key));
    weight += w;
    members.push_back(member.key);
    for (const auto& position : syncer->consumed.at(key_text(member.key)))
      disk.consumed[merge.t.value].emplace_back(who_text(member.key.who), position);
    if (!seen.insert(member.key.who.unit).second) violate("a unit is merged twice in one round");
  }
  if (!disk.state) disk.state.emplace();
  disk.state->merge_newer(merge.state);
  disk.commits[merge.t.value] = members;
  if (config.observer != nullptr) config.observer->committed(merge);
  if (disk.commits.size() == 1) first_commit = queue.now();
  last_commit = queue.now();
  if (merge.fragment != kNoFragment) {
    double& master = disk.master[static_cast<std::size_t>(merge.fragment)];
    master -= sum / weight;
    disk.published[{merge.fragment, merge.t.value}] = master;
    note_published(merge.fragment, merge.t.value);
  }
  if (keeps_backup && merge.t.value % 5 == 1) backup = disk;
  if (die_at_commit) {
    die_at_commit = false;
    kill_syncer();
    queue.after(die_away, [this] { start_syncer(); });
    return;
  }
  if (returned_at >= 0 && first_commit_after <= 0) first_commit_after = queue.now() - returned_at;
  if (returned_at >= 0 && after_return.size() < 10 && merge.fragment != kNoFragment)
    after_return.push_back(static_cast<double>(members.size()));
  syncer->core->committed(merge.t, 1000 * members.size(), queue.time());
  carry_out_effects();
  answer_held();
}

void World::answer_held() {
  if (!syncer) return;
  for (std::size_t i = 0; i < syncer->held.size();) {
    auto& held = syncer->held[i];
    const bool due = syncer->core->has_news(held.who, held.seen) || held.until <= queue.now();
    if (!due) {
      ++i;
      continue;
    }
    auto reply = syncer->core->reply(held.who, queue.time());
    auto answer = std::move(held.answer);
    syncer->held.erase(syncer->held.begin() + static_cast<std::ptrdiff_t>(i));
    if (reply) answer(*reply);
  }
}

void World::tick() {
  if (syncer) {
    syncer->core->tick(queue.time());
    carry_out_effects();
    answer_held();
  }
  queue.after(0.02, [this] { tick(); });
}

void World::inject(const Fault& fault) {
  const auto u = static_cast<std::size_t>(fault.unit) % current.size();
  switch (fault.kind) {
    case FaultKind::kKillLearner:
      if (current[u]) current[u]->stop();
      queue.after(fault.away, [this, u] {
        if (!current[u]->exited) start_learner(static_cast<int>(u));
      });
      break;
    case FaultKind::kZombie:
      if (!current[u]->exited) start_learner(static_cast<int>(u));
      break;
    case FaultKind::kCutLearner:
      if (current[u]) current[u]->link_down_until = queue.now() + fault.away;
      break;
    case FaultKind::kKillSyncer:
      if (!syncer) return;
      kill_syncer();
      queue.after(fault.away, [this] { start_syncer(); });
      break;
    case FaultKind::kLoseDisk:
    case FaultKind::kRestoreDisk:
      if (!syncer) return;
      kill_syncer();
      replace_disk(fault.kind == FaultKind::kRestoreDisk ? backup : std::nullopt);
      queue.after(fault.away, [this] { start_syncer(); });
      break;
    case FaultKind::kKillAtCommit:
      die_at_commit = true;
      die_away = fault.away;
      break;
  }
}

// Within an epoch no sequence is in two merged uploads (protocol.md §8).
void World::check_data_once() {
  std::map<std::string, std::map<std::uint64_t, std::uint32_t>> merged_upto;
  for (const auto& [t, positions] : disk.consumed)
    for (const auto& [who, position] : positions) {
      auto& upto = merged_upto[who][position.block];
      upto = std::max(upto, position.upto);
    }
  for (const auto& [sequence, who] : trained) {
    int merged = 0;
    for (const auto& name : who) {
      const auto upto = merged_upto.find(name);
      if (upto == merged_upto.end()) continue;
      const auto block = upto->second.find(sequence.first);
      if (block != upto->second.end() && sequence.second < block->second) ++merged;
    }
    if (merged > 1)
      return violate("block " + std::to_string(sequence.first) + " sequence " +
                     std::to_string(sequence.second) + " was merged twice");
  }
}

// A sender that lives until t is committed learns whether it was merged.
void World::check_outcomes() {
  if (disk_replaced) return;  // what became of earlier rounds went with the disk
  for (const auto& learner : current) {
    if (!learner || !learner->exited) continue;
    std::int64_t member = 0;
    for (const auto& [t, members] : disk.commits)
      if (t != config.sync.budget.value)
        member += std::count_if(members.begin(), members.end(),
                                [&](const auto& k) { return k.who == learner->who; });
    const std::int64_t knows = learner->core.snapshots_merged();
    if (knows > member + 1 || knows < member)
      violate(learner->who.unit + " was merged in " + std::to_string(member) +
              " rounds and knows of " + std::to_string(knows));
  }
}

std::string World::standstill() const {
  std::ostringstream out;
  out << disk.commits.size() << " of " << config.sync.budget.value << " committed";
  if (!syncer) return out.str() + ", no syncer";
  const auto status = syncer->core->status(queue.time());
  out << ", " << status.phase << ", " << status.last_decision;
  for (const auto& u : status.units)
    out << "\n  syncer sees " << u.name << " i" << u.incarnation.value << " " << u.phase
        << " at local " << u.local_step.value;
  for (const auto& learner : current) {
    if (!learner) continue;
    const auto r = learner->core.report(queue.time());
    out << "\n  " << learner->who.unit << " i" << learner->who.incarnation.value
        << (learner->alive ? " alive" : " dead") << " phase " << static_cast<int>(r.phase)
        << " local " << r.local_step.value << " applied " << r.applied.value << " committed "
        << learner->core.committed().value << " wants state " << r.wants_inner_state
        << " contributes";
    for (const auto& c : r.contributes) out << " " << c.t.value << "#" << c.attempt;
    out << " declines";
    for (const auto& d : r.declines) out << " " << d.value;
  }
  return out.str();
}

WorldResult World::result() const {
  WorldResult out;
  out.violation = violation;
  out.finished = syncer && syncer->core->finished();
  out.seconds = last_commit - first_commit;
  out.committed = static_cast<std::int64_t>(disk.commits.size());
  out.events = events;
  out.rebuilds = rebuilds;
  if (syncer) {
    const auto status = syncer->core->status(queue.time());
    out.mean_participants = status.mean_participants;
    out.merged_fraction = status.merged_fraction;
  }
  std::int64_t steps = 0;
  for (const auto& learner : all) steps += learner->core.local_step().value;
  if (steps > 0)
    out.global_steps_per_step = static_cast<double>(out.committed) *
                                static_cast<double>(current.size()) / static_cast<double>(steps);
  out.first_commit_after_return = first_commit_after;
  for (const double p : after_return)
    out.participants_after_return += p / static_cast<double>(after_return.size());
  return out;
}

WorldResult World::run() {
  start_syncer();
  for (std::size_t u = 0; u < current.size(); ++u)
    queue.after(rng.uniform(0, 0.5), [this, u] { start_learner(static_cast<int>(u)); });
  for (const auto& fault : config.faults) queue.at(fault.at, [this, fault] { inject(fault); });
  keeps_backup = std::any_of(config.faults.begin(), config.faults.end(), [](const auto& fault) {
    return fault.kind == FaultKind::kRestoreDisk;
  });
  tick();
  const auto over = [this] {
    if (!syncer || !syncer->core->finished()) return false;
    return std::all_of(current.begin(), current.end(),
                       [](const auto& l) { return l && !l->alive; });
  };
  while (!queue.empty() && violation.empty() && queue.now() < config.time_limit && !over()) {
    queue.run_one();
    ++events;
  }
  if (violation.empty() && !over()) violate("did not finish: " + standstill());
  check_data_once();
  if (violation.empty()) check_outcomes();
  return result();
}

WorldResult run_world(const WorldConfig& config) {
  World world(config);
  WorldResult out = world.run();
  // Break the cycles of processes that wait for events that never come.
  for (auto& learner : world.all) learner->alive = false;
  return out;
}

}  // namespace archipelago::simulator
