#include "outer-optimizer/store/store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "outer-optimizer/store/checkpoint_task.h"
#include "outer-optimizer/store/commit_record.h"
#include "outer-optimizer/store/export.h"
#include "outer-optimizer/store/journal.h"
#include "outer-optimizer/store/little_endian.h"

namespace archipelago::outer {
namespace fs = std::filesystem;
namespace {

std::uint64_t free_space(const fs::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return 0;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

Result<UniqueFd> lock_folder(const fs::path& folder) {
  const fs::path path = folder / "lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return fail(errno_error("open " + path.string(), errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return fail(ErrorKind::kConflict, folder.string() + " is in use by another outer optimizer");
    return fail(errno_error("lock " + path.string(), errno));
  }
  return fd;
}

// The counter of starts; 0 when there is none yet.
Result<std::int64_t> read_epoch(const fs::path& path) {
  auto text = read_file(path, 64);
  if (!text && text.error().kind == ErrorKind::kNotFound) return 0;
  if (!text) return fail(text.error());
  std::int64_t epoch = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), epoch);
  if (error != std::errc{} || end == text->data() || epoch < 0)
    return fail(ErrorKind::kCorrupt, path.string() + ": not a number");
  return epoch;
}

}  // namespace

class Store::Impl {
 public:
  using OnState = std::function<void(std::string_view)>;

  explicit Impl(StoreOptions given) : options(std::move(given)) {
    ops = options.ops != nullptr ? options.ops : &real_ops;
    checkpoints = options.folder / "checkpoints";
    journal_folder = options.folder / "journal";
  }

  Status open(const OnState& on_state);
  Status load_newest();
  Status load(GlobalStep step, CheckpointInfo info);
  Status replay(const JournalRecord& record, const OnState& on_state);
  Status replay_commit(const JournalRecord& record, const OnState& on_state);
  Status count_epoch();
  CheckpointTask::Plan checkpoint_plan(GlobalStep step, std::string_view core_state) const;
  [[nodiscard]] std::uint64_t journal_reserve() const {
    return options.journal_gradients ? journal_bytes(fragmentation, options.checkpoint_every)
                                     : kMinJournalBytes;
  }
  Result<std::uint64_t> journal_commit(const MergeRequest& request, bool update);
  void note(const std::string& problem) {
    report.problems.push_back(problem);
    report.rolled_back = true;
  }

  StoreOptions options;
  FileOps real_ops;
  FileOps* ops = nullptr;
  fs::path checkpoints, journal_folder;
  UniqueFd lock;
  std::atomic<std::int64_t> epoch{0};
  RecoveryReport report;
  CheckpointInfo base;  // run id, layout, assets and where the journal begins
  diloco::Schedule schedule;
  diloco::Fragmentation fragmentation;
  std::unique_ptr<FragmentStore> fragments;
  std::atomic<bool> seeded{false};
  std::unique_ptr<Journal> journal;
  std::unique_ptr<CheckpointTask> task;
  std::mutex digest_mutex;
  std::vector<PublishedDigest> digests;  // by fragment, of the version they name
};

Status Store::Impl::open(const OnState& on_state) {
  if (options.run_id.empty() || options.run_id.size() > 255 ||
      options.run_id.find('\n') != std::string::npos)
    return fail(ErrorKind::kInvalid,
                "run id of " + std::to_string(options.run_id.size()) + " bytes");
  ARCH_TRY(schedule, diloco::Schedule::create(options.fragments, options.interval));
  ARCH_TRY_VOID(ops->make_folder(checkpoints));
  ARCH_TRY(lock, lock_folder(options.folder));
  ARCH_TRY_VOID(restore_replaced(*ops, checkpoints));
  ARCH_TRY_VOID(load_newest());
  ARCH_TRY_VOID(count_epoch());
  if (report.found) on_state(base.core_state);
  JournalReplay replayed;
  const Journal::Start start{base.journal_generation, base.journal_sequence, report.found};
  const std::uint64_t reserve = report.found ? journal_reserve() : kMinJournalBytes;
  auto opened = Journal::open(
      *ops, journal_folder, start, reserve,
      [&](const JournalRecord& record) { return replay(record, on_state); }, &replayed);
  if (!opened) return fail(opened.error());
  journal = std::move(*opened);
  report.records = replayed.records;
  for (const auto& problem : replayed.problems) note(problem);
  if (report.without_gradients) note("checkpoint.journal was off: later rounds have no gradients");
  base.core_state.clear();
  base.core_state.shrink_to_fit();
  if (fragments != nullptr)
    for (const GlobalStep version : fragments->versions())
      report.committed = std::max(report.committed, version);
  seeded = report.found;
  return {};
}

// Newest complete checkpoint; damaged ones are named, set aside, and the one before is tried.
Status Store::Impl::load_newest() {
  auto steps = list_checkpoints(checkpoints);
  std::reverse(steps.begin(), steps.end());
  for (const GlobalStep step : steps) {
    auto info = read_checkpoint_info(checkpoints, step);
    Status loaded = info ? load(step, std::move(*info)) : fail(info.error());
    if (loaded) return {};
    fragments.reset();
    // Damage and what this build can't read are passed over; another run or another P is a mistake
    // to be told about.
    if (loaded.error().kind != ErrorKind::kCorrupt) return loaded;
    note(loaded.error().message);
    ARCH_TRY_VOID(set_aside(*ops, checkpoints, step));
  }
  if (!steps.empty())
    return fail(ErrorKind::kCorrupt, "no checkpoint in " + checkpoints.string() + " is usable (" +
                                         report.problems.front() +
                                         "); HINT: put a checkpoint folder back from a backup, or "
                                         "start a new run");
  return {};
}

Status Store::Impl::load(GlobalStep step, CheckpointInfo info) {
  const std::string where = (checkpoints / std::to_string(step.value)).string();
  if (info.run_id != options.run_id)
    return fail(ErrorKind::kConflict,
                where + " belongs to run " + info.run_id + ", this is run " + options.run_id);
  if (info.fragments != options.fragments)
    return fail(ErrorKind::kInvalid, where + " has " + std::to_string(info.fragments) +
                                         " fragments, the run asks for " +
                                         std::to_string(options.fragments));
  if (info.scheme != options.scheme)
    return fail(ErrorKind::kInvalid,
                where + " was cut by fragmentation " + std::string(diloco::to_string(info.scheme)) +
                    ", the run asks for " + std::string(diloco::to_string(options.scheme)));
  if (info.published_bf16 != options.published_bf16)
    return fail(ErrorKind::kInvalid,
                where + " was published in " + (info.published_bf16 ? "bf16" : "fp32") +
                    ", the run asks for " + (options.published_bf16 ? "bf16" : "fp32"));
  ARCH_TRY(fragmentation,
           diloco::Fragmentation::create(info.layout, options.fragments, options.scheme));
  ARCH_TRY(fragments, FragmentStore::create(info.layout, fragmentation, options.threads,
                                            options.published_bf16));
  ARCH_TRY_VOID(read_checkpoint_tensors(checkpoints, info, *fragments));
  base = std::move(info);
  report.found = true;
  report.checkpoint_step = report.exact = step;
  return {};
}

Status Store::Impl::count_epoch() {
  const fs::path path = options.folder / "epoch";
  std::int64_t last = base.epoch;
  auto counted = read_epoch(path);
  if (counted)
    last = std::max(last, *counted);
  else if (counted.error().kind == ErrorKind::kCorrupt)
    report.problems.push_back(counted.error().message);
  else
    return fail(counted.error());
  epoch = last + 1;
  return write_file_durably(path, std::to_string(epoch) + "\n");
}

Status Store::Impl::replay(const JournalRecord& record, const OnState& on_state) {
  switch (record.type) {
    case RecordType::kState:
      on_state(record.head);
      return {};
    case RecordType::kCommit:
      return replay_commit(record, on_state);
    case RecordType::kFinal: {
      ARCH_TRY(const FinalHead head, decode_final(record.head));
      if (fragments == nullptr)
        return fail(ErrorKind::kCorrupt, "final record without a checkpoint");
      if (!report.without_gradients) fragments->publish_masters(head.version);
      on_state(head.core_state);
      return {};
    }
  }
  return fail(ErrorKind::kUnsupported, "unknown record type");
}

Status Store::Impl::replay_commit(const JournalRecord& record, const OnState& on_state) {
  ARCH_TRY(CommitHead head, decode_commit(record.head));
  if (fragments == nullptr) return fail(ErrorKind::kCorrupt, "commit record without a checkpoint");
  if (head.fragment.value < 0 || head.fragment.value >= fragmentation.count())
    return fail(ErrorKind::kCorrupt,
                "commit record of fragment " + std::to_string(head.fragment.value));
  if (head.t > fragments->version(head.fragment) && head.update && record.tensor_bytes == 0)
    report.without_gradients = true;
  // Behind the first that is missing nothing can be applied; what the core noted still counts.
  if (!report.without_gradients && head.t > fragments->version(head.fragment)) {
    if (head.update) {
      const std::span<float> gradient = fragments->load_gradient(head.fragment);
      if (record.tensor_bytes != gradient.size_bytes())
        return fail(ErrorKind::kCorrupt, "commit record's gradient does not fit its fragment");
      ARCH_TRY_VOID(record.read_tensor(0, std::as_writable_bytes(gradient)));
    }
    fragments->apply(head.fragment, head.t, head.rules, head.update, std::move(head.meta));
    report.exact = std::max(report.exact, head.t);
  }
  on_state(head.core_state);
  return {};
}

CheckpointTask::Plan Store::Impl::checkpoint_plan(GlobalStep step,
                                                  std::string_view core_state) const {
  CheckpointTask::Plan plan;
  plan.checkpoints = checkpoints;
  plan.journal = journal_folder;
  plan.info = base;
  plan.info.run_id = options.run_id;
  plan.info.step = step;
  plan.info.epoch = epoch;
  plan.info.fragments = options.fragments;
  plan.info.scheme = options.scheme;
  plan.info.published_bf16 = options.published_bf16;
  plan.info.core_state = core_state;
  plan.info.journal_generation = journal->generation();
  plan.info.journal_sequence = journal->next_sequence();
  plan.keep = options.keep;
  plan.keep_every = options.keep_every;
  for (std::int32_t p = 0; p < fragmentation.count(); ++p) plan.order.emplace_back(p);
  std::sort(plan.order.begin(), plan.order.end(), [&](FragmentId a, FragmentId b) {
    return schedule.next(a, step) < schedule.next(b, step);
  });
  return plan;
}

Result<std::uint64_t> Store::Impl::journal_commit(const MergeRequest& request, bool update) {
  const std::string head = encode_commit(
      {request.t, request.fragment, update, options.rules, request.meta, request.core_state});
  const std::uint64_t tensor =
      update && options.journal_gradients
          ? static_cast<std::uint64_t>(fragmentation[request.fragment].elements) * sizeof(float)
          : 0;
  auto source = [&](std::uint64_t first, std::span<std::byte> out) {
    // Pieces of the tensor are whole floats, but lie behind a head of any length: not aligned.
    std::array<float, codec::kChunk> piece;
    auto element = static_cast<std::int64_t>(first / sizeof(float));
    while (!out.empty()) {
      const std::size_t n = std::min(piece.size(), out.size() / sizeof(float));
      fragments->gradient(element, std::span(piece).first(n));
      std::memcpy(out.data(), piece.data(), n * sizeof(float));
      out = out.subspan(n * sizeof(float));
      element += static_cast<std::int64_t>(n);
    }
  };
  ARCH_TRY_VOID(tensor > 0 ? journal->append(RecordType::kCommit, head, tensor, source)
                           : journal->append(RecordType::kCommit, head));
  return head.size() + tensor;
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::open(StoreOptions options,
                                           const std::function<void(std::string_view)>& on_state) {
  auto impl = std::make_unique<Impl>(std::move(options));
  ARCH_TRY_VOID(impl->open(on_state));
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

std::int64_t Store::epoch() const { return impl_->epoch; }
const RecoveryReport& Store::recovery() const { return impl_->report; }
bool Store::has_layout() const { return impl_->fragments != nullptr; }
bool Store::seeded() const { return impl_->seeded; }
const diloco::Layout& Store::layout() const { return impl_->base.layout; }
const Assets& Store::assets() const { return impl_->base.assets; }
const diloco::Fragmentation& Store::fragmentation() const { return impl_->fragmentation; }
const FragmentStore* Store::fragments() const { return impl_->fragments.get(); }

Status Store::set_layout(diloco::Layout layout, Assets assets) {
  Impl& s = *impl_;
  if (s.seeded) return fail(ErrorKind::kConflict, "the run has a layout already");
  ARCH_TRY_VOID(check_assets(assets));
  ARCH_TRY(auto fragmentation,
           diloco::Fragmentation::create(layout, s.options.fragments, s.options.scheme));
  std::uint64_t needed = storage_needed(fragmentation, s.options.keep, s.options.checkpoint_every);
  if (!s.options.journal_gradients)
    needed -= journal_bytes(fragmentation, s.options.checkpoint_every) - kMinJournalBytes;
  const std::uint64_t available = free_space(s.options.folder);
  if (needed > available)
    return fail(ErrorKind::kNoSpace, s.options.folder.string() + " has " +
                                         std::to_string(available) + " bytes free, the run needs " +
                                         std::to_string(needed) + " for " +
                                         std::to_string(layout.elements()) + " parameters");
  ARCH_TRY(s.fragments, FragmentStore::create(layout, fragmentation, s.options.threads,
                                              s.options.published_bf16));
  s.fragmentation = std::move(fragmentation);
  s.base.layout = std::move(layout);
  s.base.assets = std::move(assets);
  s.journal->set_preallocate(s.journal_reserve());
  return {};
}

Status Store::seed_fragment(FragmentId p, GlobalStep version, std::span<const float> values) {
  Impl& s = *impl_;
  if (s.fragments == nullptr) return fail(ErrorKind::kConflict, "no layout yet");
  if (s.seeded) return fail(ErrorKind::kConflict, "the run is seeded already");
  if (p.value < 0 || p.value >= s.fragmentation.count())
    return fail(ErrorKind::kInvalid, "fragment " + std::to_string(p.value) + "; allowed: 0 to " +
                                         std::to_string(s.fragmentation.count() - 1));
  if (version.value < 0)
    return fail(ErrorKind::kInvalid, "version " + std::to_string(version.value));
  return s.fragments->set(p, version, values, {}, {});
}

Status Store::commit_seed(GlobalStep step, std::string_view core_state) {
  Impl& s = *impl_;
  if (s.fragments == nullptr || s.seeded) return fail(ErrorKind::kConflict, "nothing to seed");
  for (std::int32_t p = 0; p < s.fragmentation.count(); ++p)
    if (s.fragments->version(FragmentId(p)).value < 0)
      return fail(ErrorKind::kInvalid, "fragment " + std::to_string(p) + " has not been seeded");
  ARCH_TRY_VOID(s.journal->rotate());
  CheckpointTask task(*s.ops, *s.fragments, s.checkpoint_plan(step, core_state));
  ARCH_TRY_VOID(task.result());
  s.seeded = true;
  return {};
}

Status Store::commit_rebuilt(GlobalStep step, const std::vector<GlobalStep>& versions,
                             std::string_view core_state) {
  Impl& s = *impl_;
  if (s.fragments == nullptr || s.seeded ||
      versions.size() != static_cast<std::size_t>(s.fragmentation.count()))
    return fail(ErrorKind::kConflict, "nothing to rebuild");
  for (std::int32_t p = 0; p < s.fragmentation.count(); ++p)
    s.fragments->adopt(FragmentId(p), versions[static_cast<std::size_t>(p)]);
  return commit_seed(step, core_state);
}

Status Store::raise_epoch(std::int64_t epoch) {
  if (epoch <= impl_->epoch) return {};
  impl_->epoch = epoch;
  return write_file_durably(impl_->options.folder / "epoch", std::to_string(epoch) + "\n");
}

Status Store::persist(std::string_view core_state) {
  return impl_->journal->append(RecordType::kState, core_state);
}

Result<MergeOutcome> Store::merge_and_commit(const MergeRequest& request) {
  Impl& s = *impl_;
  if (!s.seeded) return fail(ErrorKind::kConflict, "the run is not seeded");
  if (request.fragment.value < 0 || request.fragment.value >= s.fragmentation.count())
    return fail(ErrorKind::kInvalid, "fragment " + std::to_string(request.fragment.value));
  if (request.t <= s.fragments->version(request.fragment))
    return fail(ErrorKind::kConflict,
                "global step " + std::to_string(request.t.value) + " is committed");
  const SystemClock clock;
  MergeOutcome outcome;
  const TimePoint begin = clock.now();
  ARCH_TRY(outcome.updated,
           s.fragments->prepare(request.fragment, request.members, s.options.rules.radial));
  const TimePoint merged = clock.now();
  ARCH_TRY(outcome.journal_bytes, s.journal_commit(request, outcome.updated));
  const TimePoint journaled = clock.now();
  if (s.task != nullptr) s.task->wait_for(request.fragment);
  const TimePoint waited = clock.now();
  outcome.frame_bytes = s.fragments->apply(request.fragment, request.t, s.options.rules,
                                           outcome.updated, request.meta);
  outcome.merge_seconds = to_seconds(merged - begin);
  outcome.journal_seconds = to_seconds(journaled - merged);
  outcome.wait_seconds = to_seconds(waited - journaled);
  outcome.publish_seconds = to_seconds(clock.now() - waited);
  return outcome;
}

Status Store::publish_final(GlobalStep version, std::string_view core_state) {
  Impl& s = *impl_;
  if (!s.seeded) return fail(ErrorKind::kConflict, "the run is not seeded");
  ARCH_TRY_VOID(
      s.journal->append(RecordType::kFinal, encode_final({version, std::string(core_state)})));
  if (s.task != nullptr)
    static_cast<void>(s.task->result());  // it reads published copies: let it end first
  s.fragments->publish_masters(version);
  return {};
}

Result<bool> Store::start_checkpoint(GlobalStep step, std::string_view core_state) {
  Impl& s = *impl_;
  if (!s.seeded) return fail(ErrorKind::kConflict, "the run is not seeded");
  if (s.task != nullptr) return false;
  ARCH_TRY_VOID(s.journal->rotate());
  s.task =
      std::make_unique<CheckpointTask>(*s.ops, *s.fragments, s.checkpoint_plan(step, core_state));
  return true;
}

Status Store::checkpoint_now(GlobalStep step, std::string_view core_state) {
  Impl& s = *impl_;
  if (!s.seeded) return fail(ErrorKind::kConflict, "the run is not seeded");
  if (s.task != nullptr) static_cast<void>(s.task->result());  // its outcome is polled for
  ARCH_TRY_VOID(s.journal->rotate());
  CheckpointTask task(*s.ops, *s.fragments, s.checkpoint_plan(step, core_state));
  return task.result();
}

std::optional<CheckpointResult> Store::poll_checkpoint() {
  if (impl_->task == nullptr || !impl_->task->ended()) return std::nullopt;
  return finish_checkpoint();
}

std::optional<CheckpointResult> Store::finish_checkpoint() {
  Impl& s = *impl_;
  if (s.task == nullptr) return std::nullopt;
  CheckpointResult result{s.task->step(), s.task->result(), s.task->seconds()};
  s.task.reset();
  if (!result.status && result.status.error().kind == ErrorKind::kNoSpace)
    static_cast<void>(prune_checkpoints(*s.ops, s.checkpoints, 1, s.options.keep_every));
  return result;
}

Status Store::export_model(const fs::path& folder) const {
  if (!impl_->seeded) return fail(ErrorKind::kConflict, "the run is not seeded");
  return outer::export_model(folder, impl_->base.layout, *impl_->fragments, impl_->base.assets);
}

std::optional<Frame> Store::frame(FragmentId p, GlobalStep have) const {
  if (!impl_->seeded || p.value < 0 || p.value >= impl_->fragmentation.count()) return std::nullopt;
  return impl_->fragments->frame(p, have);
}

std::vector<GlobalStep> Store::versions() const {
  return impl_->seeded ? impl_->fragments->versions() : std::vector<GlobalStep>{};
}

std::optional<Store::PublishedDigest> Store::published_digest(FragmentId p) const {
  Impl& s = *impl_;
  if (!s.seeded || p.value < 0 || p.value >= s.fragmentation.count()) return std::nullopt;
  const auto frame = s.fragments->keyframe(p);
  if (!frame) return std::nullopt;
  const std::lock_guard lock(s.digest_mutex);
  s.digests.resize(static_cast<std::size_t>(s.fragmentation.count()),
                   PublishedDigest{GlobalStep(-1), 0});
  PublishedDigest& known = s.digests[static_cast<std::size_t>(p.value)];
  if (known.version != frame->version)
    known = {frame->version, checksum_of(frame->payload->bytes())};
  return known;
}

Store::DiskUse Store::disk_use() const {
  return {impl_->journal->used_bytes(), impl_->journal->allocated_bytes(),
          free_space(impl_->options.folder)};
}

}  // namespace archipelago::outer
