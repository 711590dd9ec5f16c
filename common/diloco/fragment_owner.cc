#include "common/diloco/fragment_owner.h"

#include <algorithm>

namespace archipelago::diloco {

namespace {
// Rate samples shorter than this say more about scheduling than about the link.
constexpr Duration kRateWindow = std::chrono::milliseconds(500);

std::string name_round(GlobalStep t) { return "round " + std::to_string(t.value); }
}  // namespace

void FragmentOwner::announce(const AnnounceMessage& message) {
  Entry entry;
  entry.fragment = message.fragment;
  entry.base = message.base;
  entry.quorum = message.quorum;
  entries_.emplace(message.t, std::move(entry));
}

void FragmentOwner::close(const CloseMessage& message, TimePoint now) {
  const auto it = entries_.find(message.t);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  entry.closed = true;
  entry.closed_at = now;
  entry.kth.reset();
  entry.awaited.clear();
  for (const auto& unit : message.members) {
    const auto upload = entry.uploads.find(unit);
    if (upload == entry.uploads.end() || !upload->second.complete) entry.awaited.insert(unit);
  }
  if (complete_count(entry) >= entry.quorum) entry.kth = Duration{};
}

void FragmentOwner::reopened(GlobalStep t) {
  const auto it = entries_.find(t);
  if (it == entries_.end()) return;
  it->second.closed = false;
  it->second.awaited.clear();
}

void FragmentOwner::lower_quorum(std::int32_t quorum, TimePoint now) {
  for (auto& [t, entry] : entries_) {
    entry.quorum = std::min(entry.quorum, quorum);
    if (entry.closed && !entry.kth && complete_count(entry) >= entry.quorum)
      entry.kth = now - entry.closed_at;
  }
}

Result<UploadVerdict> FragmentOwner::started(const UploadKey& key, std::int32_t fragment,
                                             GlobalStep base, std::uint64_t bytes, TimePoint now) {
  const auto it = entries_.find(key.t);
  if (it == entries_.end()) return fail(ErrorKind::kConflict, name_round(key.t) + " is not open");
  Entry& entry = it->second;
  if (entry.fragment != fragment)
    return fail(ErrorKind::kInvalid, name_round(key.t) + " has fragment " +
                                         std::to_string(entry.fragment) + ", given " +
                                         std::to_string(fragment));
  if (entry.base != base)
    return fail(ErrorKind::kConflict, name_round(key.t) + " has base " +
                                          std::to_string(entry.base.value) + ", given " +
                                          std::to_string(base.value));
  const auto known = entry.uploads.find(key.who.unit);
  if (known != entry.uploads.end() && known->second.complete) {
    // The first complete attempt wins; one that was complete before its unit was fenced stays a
    // member.
    if (known->second.key.who == key.who) return UploadVerdict::kRepeat;
    return fail(ErrorKind::kConflict,
                name_round(key.t) + " already holds an upload of unit " + key.who.unit);
  }
  if (merging_ && merging_->t == key.t)
    return fail(ErrorKind::kConflict, name_round(key.t) + " is merging");
  entry.uploads[key.who.unit] = Upload{key, bytes, 0, now, false, {}};
  Link& link = links_[key.who.unit];
  link.mark = now;
  link.mark_bytes = link.total;
  return UploadVerdict::kAccept;
}

void FragmentOwner::note_bytes(const std::string& unit, std::uint64_t bytes, TimePoint now) {
  Link& link = links_[unit];
  link.total += bytes;
  if (now - link.mark < kRateWindow) return;
  link.recent = static_cast<double>(link.total - link.mark_bytes) / to_seconds(now - link.mark);
  link.mark = now;
  link.mark_bytes = link.total;
}

void FragmentOwner::received(const UploadKey& key, std::uint64_t bytes, TimePoint now) {
  const auto it = entries_.find(key.t);
  if (it == entries_.end()) return;
  const auto upload = it->second.uploads.find(key.who.unit);
  if (upload == it->second.uploads.end() || upload->second.key != key ||
      bytes <= upload->second.received)
    return;
  note_bytes(key.who.unit, bytes - upload->second.received, now);
  upload->second.received = bytes;
}

Result<std::int32_t> FragmentOwner::complete(const UploadInfo& info, TimePoint now) {
  const auto it = entries_.find(info.key.t);
  if (it == entries_.end())
    return fail(ErrorKind::kConflict, name_round(info.key.t) + " is not open");
  Entry& entry = it->second;
  const std::string& unit = info.key.who.unit;
  const auto found = entry.uploads.find(unit);
  if (found == entry.uploads.end() ||
      (merging_ && merging_->t == info.key.t && !found->second.complete))
    return fail(ErrorKind::kConflict, name_round(info.key.t) + " takes no upload of unit " + unit);
  Upload& upload = found->second;
  if (upload.complete) return upload.key.attempt;
  if (upload.key != info.key)
    return fail(ErrorKind::kConflict,
                name_round(info.key.t) + " awaits another attempt of unit " + unit);
  received(info.key, info.bytes, now);
  upload.complete = true;
  upload.info = info;
  fragment_bytes_[entry.fragment] = info.bytes;
  // Half old, half new; a transfer below a millisecond counts as one: loopback is not infinitely
  // fast.
  const double sample =
      static_cast<double>(info.bytes) / std::max(to_seconds(now - upload.started), 1e-3);
  double& throughput = links_[unit].throughput;
  throughput = throughput <= 0 ? sample : 0.5 * throughput + 0.5 * sample;
  entry.awaited.erase(unit);
  if (entry.closed && !entry.kth && complete_count(entry) >= entry.quorum)
    entry.kth = now - entry.closed_at;
  return upload.key.attempt;
}

bool FragmentOwner::aborted(const UploadKey& key) {
  const auto it = entries_.find(key.t);
  if (it == entries_.end()) return false;
  const auto upload = it->second.uploads.find(key.who.unit);
  if (upload == it->second.uploads.end() || upload->second.key != key || upload->second.complete)
    return false;
  it->second.uploads.erase(
      upload);  // its sender repeats the PUT; it stays awaited until the deadline
  return true;
}

void FragmentOwner::drop_incomplete(const std::string& unit) {
  for (auto& [t, entry] : entries_) {
    const auto upload = entry.uploads.find(unit);
    if (upload != entry.uploads.end() && upload->second.complete) continue;
    if (upload != entry.uploads.end()) entry.uploads.erase(upload);
    entry.awaited.erase(unit);
  }
}

std::int32_t FragmentOwner::complete_count(const Entry& entry) const {
  return static_cast<std::int32_t>(std::count_if(entry.uploads.begin(), entry.uploads.end(),
                                                 [](const auto& u) { return u.second.complete; }));
}

double FragmentOwner::figure(const Entry& entry, const std::string& unit) const {
  const auto link = links_.find(unit);
  if (link == links_.end() || link->second.throughput <= 0) return -1;
  std::uint64_t bytes = 0;
  const auto upload = entry.uploads.find(unit);
  if (upload != entry.uploads.end()) bytes = upload->second.bytes;
  if (const auto usual = fragment_bytes_.find(entry.fragment);
      bytes == 0 && usual != fragment_bytes_.end())
    bytes = usual->second;
  return static_cast<double>(bytes) / link->second.throughput;
}

double FragmentOwner::kth_smallest_figure(const Entry& entry) const {
  std::vector<double> figures;
  for (const auto& [unit, upload] : entry.uploads)
    if (const double f = figure(entry, unit); f >= 0) figures.push_back(f);
  for (const auto& unit : entry.awaited)
    if (const double f = figure(entry, unit); f >= 0 && !entry.uploads.contains(unit))
      figures.push_back(f);
  const auto k = static_cast<std::size_t>(std::max(1, entry.quorum));
  if (figures.size() < k) return -1;
  std::nth_element(figures.begin(), figures.begin() + static_cast<std::ptrdiff_t>(k - 1),
                   figures.end());
  return figures[k - 1];
}

// §2.6: 3 x bytes / measured throughput, at least a step, longer while bytes arrive at a tenth of
// it; 60 s unmeasured. Once K are complete the rest has max(step, 2 x what the K-th took), and a
// link beyond both bounds is not awaited at all.
bool FragmentOwner::still_awaited(const Entry& entry, const std::string& unit, double step_seconds,
                                  double kth_smallest, TimePoint now) const {
  const double since = to_seconds(now - entry.closed_at);
  const double own = figure(entry, unit);
  if (entry.kth) {
    if (since > std::max(step_seconds, 2 * to_seconds(*entry.kth))) return false;
    if (own >= 0 && kth_smallest >= 0 && own > config_->overlap * step_seconds &&
        own > 2 * kth_smallest)
      return false;
  }
  if (own < 0) return since <= to_seconds(config_->unmeasured_upload);
  if (since <= std::max(step_seconds, 3 * own)) return true;
  const Link& link = links_.at(unit);
  const bool fresh = now - link.mark <= 4 * kRateWindow;
  return fresh && in_flight(unit) && link.recent >= 0.1 * link.throughput;
}

bool FragmentOwner::in_flight(const std::string& unit) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) {
    const auto upload = e.second.uploads.find(unit);
    return upload != e.second.uploads.end() && !upload->second.complete;
  });
}

std::vector<GlobalStep> FragmentOwner::evaluate(double step_seconds, TimePoint now) {
  std::vector<GlobalStep> short_of_quorum;
  for (auto& item : entries_) {  // no structured binding: clang 14 does not capture one
    const GlobalStep t = item.first;
    Entry& entry = item.second;
    if (!entry.closed || entry.ready) continue;
    if (entry.fragment == kNoFragment) {
      entry.ready = true;
      continue;
    }
    const double kth = kth_smallest_figure(entry);
    std::erase_if(entry.awaited, [&](const std::string& unit) {
      return !still_awaited(entry, unit, step_seconds, kth, now);
    });
    if (!entry.awaited.empty()) continue;
    if (complete_count(entry) >= entry.quorum) {
      entry.ready = true;
    } else {
      short_of_quorum.push_back(t);
    }
  }
  return short_of_quorum;
}

std::optional<StartMerge> FragmentOwner::start_merge(GlobalStep committed, const UnitTable& units) {
  if (merging_) return std::nullopt;
  const auto it = entries_.find(committed.next());
  if (it == entries_.end() || !it->second.ready) return std::nullopt;
  StartMerge merge;
  merge.t = it->first;
  merge.fragment = it->second.fragment;
  for (const auto& [unit, upload] : it->second.uploads) {
    if (upload.complete)
      merge.members.push_back({upload.key, upload.info.counters});
    else
      merge.excluded.push_back(upload.key);
  }
  for (const auto& [name, unit] : units.all()) {
    const auto contribution = unit.contributes.find(merge.t);
    if (contribution == unit.contributes.end() || it->second.uploads.contains(name)) continue;
    merge.excluded.push_back(
        {{name, unit.id.incarnation, unit.id.session}, merge.t, contribution->second});
  }
  merging_ = merge;
  return merge;
}

void FragmentOwner::merge_failed(GlobalStep t) {
  if (merging_ && merging_->t == t) merging_.reset();
}

CommitRecord record_of(const StartMerge& merge) {
  CommitRecord record;
  record.t = merge.t;
  record.fragment = merge.fragment;
  for (const auto& member : merge.members) record.members.push_back(member.key);
  record.excluded = merge.excluded;
  return record;
}

CommitRecord FragmentOwner::committed(GlobalStep t) {
  CommitRecord record;
  record.t = t;
  if (merging_ && merging_->t == t) {
    record = record_of(*merging_);
    merging_.reset();
  }
  entries_.erase(entries_.begin(), entries_.upper_bound(t));
  return record;
}

double FragmentOwner::throughput(const std::string& unit) const {
  const auto it = links_.find(unit);
  return it == links_.end() ? 0 : it->second.throughput;
}

}  // namespace archipelago::diloco
