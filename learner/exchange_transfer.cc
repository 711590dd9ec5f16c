// The bulk part of Exchange: frames up and down.
#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "common/codec/bf16_grid.h"
#include "common/wire/tape_file.h"
#include "learner/exchange.h"

namespace archipelago::learner {
namespace {

constexpr Duration kLeaveTimeout = std::chrono::seconds(25);  // within a pod's usual grace
constexpr Duration kTransferTimeout =
    std::chrono::hours(1);  // the io time-out ends a dead link long before
constexpr Duration kDonorTimeout =
    std::chrono::seconds(30);  // without a complete state: another donor
// Events of the tape in one POST; and beside an upload, where more than these go ahead of it. A
// tape must not hold up training: one that is not taken is tried again with the next upload.
constexpr std::size_t kEventsAtOnce = 256;
constexpr std::size_t kEventsInHeader = 48;
constexpr Duration kEventsTimeout = std::chrono::seconds(5);
constexpr std::uint64_t kMaxInnerState = std::uint64_t{1} << 40;

// A frame as one stream of header, payload and trailer without copying the payload.
class FrameSource {
 public:
  FrameSource(const wire::FrameWriter& writer, std::span<const std::byte> payload,
              std::span<const std::byte> trailer)
      : parts_{writer.header_bytes(), payload, trailer} {}
  [[nodiscard]] std::uint64_t size() const {
    return parts_[0].size() + parts_[1].size() + parts_[2].size();
  }
  [[nodiscard]] std::size_t copy(std::uint64_t offset, std::span<std::byte> into) const {
    std::size_t done = 0;
    std::uint64_t begin = 0;
    for (const auto& part : parts_) {
      if (offset + done < begin + part.size() && done < into.size()) {
        const auto from = static_cast<std::size_t>(offset + done - begin);
        const std::size_t n = std::min(part.size() - from, into.size() - done);
        std::memcpy(into.data() + done, part.data() + from, n);
        done += n;
      }
      begin += part.size();
    }
    return done;
  }

 private:
  std::span<const std::byte> parts_[3];
};

}  // namespace

wire::FrameHeader Exchange::header(wire::FrameKind kind, codec::Codec codec) const {
  wire::FrameHeader header;
  header.kind = kind;
  header.codec = codec;
  header.run_id = run_bytes_;
  header.layout_digest = layout_bytes_;
  header.session = session_bytes_;
  header.unit = options_.hello.who.unit;
  header.incarnation = options_.hello.who.incarnation;
  return header;
}

Result<http::Response> Exchange::put_frame(http::Client& client, const std::string& path,
                                           const wire::FrameHeader& head,
                                           std::span<const std::byte> payload, Duration timeout,
                                           const http::HeaderList& headers) {
  auto writer = wire::FrameWriter::create(head);
  if (!writer) return fail(writer.error());
  ARCH_TRY_VOID(writer->add_payload(payload));
  auto trailer = writer->trailer();
  if (!trailer) return fail(trailer.error());
  const FrameSource source(*writer, payload, *trailer);
  auto reply = client.put_stream(
      path, headers, source.size(),
      [&](std::uint64_t offset, std::span<std::byte> into) -> Result<std::size_t> {
        return source.copy(offset, into);
      },
      timeout);
  if (reply && reply->ok()) counters_.bytes_up += source.size();
  return reply;
}

void Exchange::send_events(http::Client& client) {
  for (std::size_t most = kEventsAtOnce; most > 0;) {
    const auto batch = hub_.unwritten_events(most);
    if (batch.events.empty()) return;
    const auto body = wire::encode_tape_record(batch);
    if (body.size() > wire::kMaxTapeBatch) {
      most = batch.events.size() / 2;
      continue;
    }
    const auto* text = reinterpret_cast<const char*>(body.data());
    const auto reply = client.request("POST", "/v1/tape", std::string_view(text, body.size()),
                                      "application/octet-stream", {}, kEventsTimeout);
    if (!reply || !reply->ok() || !adopt_events_written(reply->body)) return;
    if (hub_.unwritten_events(1).from == batch.from) return;  // no room for them there
  }
}

http::HeaderList Exchange::event_headers() {
  auto batch = hub_.unwritten_events(kEventsInHeader);
  auto bytes = wire::encode_tape_record(batch);
  if (batch.events.size() == kEventsInHeader || bytes.size() > wire::kMaxTapeHeader) {
    send_events(*upload_client_);
    batch = hub_.unwritten_events(kEventsInHeader);
    bytes = wire::encode_tape_record(batch);
  }
  if (batch.events.empty() || bytes.size() > wire::kMaxTapeHeader) return {};
  return {{"X-Archipelago-Tape", wire::tape_header_text(bytes)}};
}

bool Exchange::adopt_events_written(const std::string& reply) {
  const auto json = nlohmann::json::parse(reply, nullptr, false);
  if (!json.is_object()) return false;
  const auto upto = json.find("tape");
  if (upto == json.end() || !upto->is_number_integer()) return false;
  hub_.events_written(upto->get<std::int64_t>());
  return true;
}

void Exchange::upload_snapshot(const diloco::UploadOrder& order, Backoff& backoff,
                               const std::stop_token& stop) {
  const auto& snapshot = order.snapshot;
  const auto answer = [&](diloco::UploadOutcome outcome) {
    hub_.with_core([&](diloco::LearnerCore& core) {
      core.upload_result(snapshot.t, snapshot.attempt, outcome);
    });
  };
  const FragmentView& view = fragments_[snapshot.fragment];
  std::vector<std::byte> payload;
  if (const Status encoded = encode_fragment(view, options_.uplink,
                                             hub_.buffer(snapshot.buffer, view.total), &payload);
      !encoded) {
    log_.error("snapshot refused by the codec",
               {{"fragment", snapshot.fragment}, {"error", encoded.error().describe()}});
    return answer(diloco::UploadOutcome::kRefused);
  }
  wire::FrameHeader head = header(wire::FrameKind::kUpload, options_.uplink);
  head.t = snapshot.t;
  head.base = snapshot.base;
  head.fragment = snapshot.fragment;
  head.attempt = snapshot.attempt;
  head.steps = order.info.counters.steps;
  head.tokens = order.info.counters.tokens;
  head.local_step = order.info.local_step;
  for (const auto& position : order.info.consumed)
    head.consumed.push_back({position.block, 0, position.upto});
  head.payload_bytes = payload.size();
  http::HeaderList headers = event_headers();
  headers.push_back(lineage_header().front());
  auto reply =
      put_frame(*upload_client_, "/v1/rounds/" + std::to_string(snapshot.t.value) + "/upload", head,
                payload, kTransferTimeout, std::move(headers));
  if (reply && reply->ok()) {
    ++counters_.uploads;
    adopt_events_written(reply->body);
    backoff.failures = 0;
    return answer(diloco::UploadOutcome::kReceipt);
  }
  ++counters_.uploads_failed;
  const Error error = reply ? http::error_of(*reply, "PUT upload") : reply.error();
  if (error.kind == ErrorKind::kConflict) return answer(diloco::UploadOutcome::kStale);
  if (error.kind == ErrorKind::kRefused || error.kind == ErrorKind::kInvalid ||
      error.kind == ErrorKind::kTooLarge || error.kind == ErrorKind::kUnsupported ||
      error.kind == ErrorKind::kCorrupt) {
    log_.error("upload refused", {{"global_step", snapshot.t.value}, {"error", error.describe()}});
    return answer(diloco::UploadOutcome::kRefused);
  }
  answer(diloco::UploadOutcome::kRetry);
  if (stop.stop_requested() || fatal(error, false)) return;
  if (error.kind == ErrorKind::kNotFound) hello_again_ = true;
  if (backoff.failures == 0)
    log_.warn("upload not answered",
              {{"global_step", snapshot.t.value}, {"error", error.describe()}});
  sleep(stop, backoff.next());
}

Status Exchange::upload_seed(const std::vector<float>& flat) {
  send_events(*upload_client_);
  std::vector<float> values;
  std::vector<std::byte> payload;
  for (std::int32_t p = 0; p < fragments_.count(); ++p) {
    const FragmentView& view = fragments_[p];
    values.clear();
    for (std::size_t i = 0; i < view.elements.size(); ++i) {
      const float* from = flat.data() + view.flat_offsets[i];
      values.insert(values.end(), from, from + view.elements[i]);
    }
    ARCH_TRY_VOID(encode_fragment(view, codec::Codec::kFp32, values, &payload));
    wire::FrameHeader head = header(wire::FrameKind::kSeedKeyframe, codec::Codec::kFp32);
    head.fragment = p;
    head.attempt = 1;
    head.payload_bytes = payload.size();
    auto reply = put_frame(*upload_client_, "/v1/rounds/0/upload", head, payload, kTransferTimeout);
    if (!reply) return fail(reply.error());
    if (!reply->ok())
      return fail(http::error_of(*reply, "PUT seed of fragment " + std::to_string(p)));
  }
  return {};
}

// The outer optimizer's disk is lost and this base is the newest that anybody holds (protocol.md
// §6).
void Exchange::upload_base(const diloco::RebuildOrder& order, Backoff& backoff,
                           const std::stop_token& stop) {
  const FragmentView& view = fragments_[order.fragment];
  const Base base = hub_.bases().get(order.fragment, order.version);
  std::vector<std::byte> payload;
  Status done = base == nullptr ? fail(ErrorKind::kUnavailable, "a newer version is being applied")
                                : encode_fragment(view, codec::Codec::kFp32, *base, &payload);
  if (done) {
    wire::FrameHeader head = header(wire::FrameKind::kSeedKeyframe, codec::Codec::kFp32);
    head.fragment = order.fragment;
    head.base = order.version;
    head.attempt = 1;
    head.payload_bytes = payload.size();
    const auto reply =
        put_frame(*upload_client_, "/v1/rounds/0/upload", head, payload, kTransferTimeout);
    if (!reply)
      done = fail(reply.error());
    else if (!reply->ok())
      done = fail(http::error_of(*reply, "PUT base of fragment " + std::to_string(order.fragment)));
  }
  if (done)
    log_.info("base uploaded", {{"fragment", order.fragment}, {"version", order.version.value}});
  if (done || done.error().kind == ErrorKind::kConflict) {
    backoff.failures = 0;
    return hub_.with_core(
        [&](diloco::LearnerCore& core) { core.rebuild_answered(order.fragment); });
  }
  log_.warn("base not uploaded", {{"error", done.error().describe()}});
  if (stop.stop_requested() || fatal(done.error(), false)) return;
  sleep(stop, backoff.next());
}

http::HeaderList Exchange::lineage_header() const {
  const auto lineage = hub_.look([](const diloco::LearnerCore& core) { return core.lineage(); });
  return {{"X-Archipelago-Lineage", std::to_string(lineage)}};
}

Status Exchange::fetch_fragment(const diloco::FetchOrder& order, bool* lost_base) {
  const FragmentView& view = fragments_[order.fragment];
  std::vector<std::byte> payload;
  const std::size_t limit = payload_size(view, codec::Codec::kFp32) + 4096;
  wire::FrameReader reader(
      {.max_payload = limit},
      [&](const wire::FrameHeader& head) -> Status {
        payload.reserve(head.payload_bytes);
        return {};
      },
      [&](std::span<const std::byte> piece) -> Status {
        payload.insert(payload.end(), piece.begin(), piece.end());
        return {};
      });
  auto reply = fetch_client_->get_stream(
      "/v1/fragments/" + std::to_string(order.fragment) +
          "?have=" + std::to_string(order.have.value),
      lineage_header(), limit + wire::kMaxHeaderBytes + wire::kChecksumBytes,
      [&](std::span<const std::byte> piece) {
        counters_.bytes_down += piece.size();
        return reader.feed(piece);
      },
      kTransferTimeout);
  if (!reply) return fail(reply.error());
  if (!reply->ok()) {
    *lost_base = reply->status == 409;
    return fail(http::error_of(*reply, "GET fragment " + std::to_string(order.fragment)));
  }
  // Nothing newer: asked too early, or the reply that named the version was of an older outer
  // optimizer.
  if (reply->status == 204) return fail(ErrorKind::kUnavailable, "no newer version yet");
  ARCH_TRY_VOID(reader.finish());
  return adopt_frame(order, *reader.header(), payload, lost_base);
}

Status Exchange::adopt_frame(const diloco::FetchOrder& order, const wire::FrameHeader& head,
                             std::span<const std::byte> payload, bool* lost_base) {
  const bool delta = head.kind == wire::FrameKind::kDelta;
  if (head.run_id != run_bytes_ || head.layout_digest != layout_bytes_ ||
      head.fragment != order.fragment || (!delta && head.kind != wire::FrameKind::kKeyframe))
    return fail(ErrorKind::kCorrupt, "frame is of another run, layout, fragment or kind");
  const FragmentView& view = fragments_[order.fragment];
  std::shared_ptr<std::vector<float>> values;
  if (delta) {
    const Base base = hub_.bases().get(order.fragment, head.base);
    if (base == nullptr) {
      *lost_base = true;
      return fail(ErrorKind::kConflict,
                  "delta to version " + std::to_string(head.base.value) + ", which is not held");
    }
    values = std::make_shared<std::vector<float>>(*base);
  } else {
    values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(view.total));
  }
  ARCH_TRY_VOID(decode_fragment(view, head.codec, payload, delta, *values));
  if (options_.published_bf16) codec::round_to_bf16(*values);  // as the outer optimizer did
  if (order.forget) hub_.bases().forget(order.fragment);
  if (!hub_.bases().put(order.fragment, head.t, std::move(values)))
    return fail(ErrorKind::kUnavailable, "too many versions wait to be applied");
  hub_.with_core([&](diloco::LearnerCore& core) {
    core.fetched(order.fragment, delta ? head.base : diloco::kNoVersion, head.t);
  });
  return {};
}

Status Exchange::fetch_inner_state(const diloco::RecoveryTask& task) {
  std::vector<std::byte> state;
  wire::FrameReader reader(
      {.max_payload = kMaxInnerState}, [&](const wire::FrameHeader&) -> Status { return {}; },
      [&](std::span<const std::byte> piece) -> Status {
        state.insert(state.end(), piece.begin(), piece.end());
        return {};
      });
  const std::uint64_t limit = 64 + 8 * static_cast<std::uint64_t>(fragments_.elements());
  auto reply = relay_client_->get_stream(
      "/v1/recovery/" + http::url_encode(task.id), {},
      limit + wire::kMaxHeaderBytes + wire::kChecksumBytes,
      [&](std::span<const std::byte> piece) {
        counters_.bytes_down += piece.size();
        return reader.feed(piece);
      },
      kTransferTimeout);
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail(http::error_of(*reply, "GET inner state from " + task.peer));
  ARCH_TRY_VOID(reader.finish());
  const auto& head = *reader.header();
  if (head.kind != wire::FrameKind::kInnerState || head.run_id != run_bytes_ ||
      head.layout_digest != layout_bytes_)
    return fail(ErrorKind::kCorrupt, "inner state is of another run, layout or kind");
  log_.info("inner state received", {{"from", task.peer},
                                     {"donor", head.unit},
                                     {"donor_incarnation", head.incarnation.value},
                                     {"bytes", state.size()}});
  hub_.deliver_inner_state(
      {task.id, std::move(state), head.unit, head.incarnation, head.local_step});
  return {};
}

Status Exchange::send_inner_state(http::Client& client, const Donation& donation,
                                  Duration timeout) {
  const bool half = options_.recovery_precision == config::Precision::kBf16;
  wire::FrameHeader head =
      header(wire::FrameKind::kInnerState, half ? codec::Codec::kBf16 : codec::Codec::kFp32);
  head.fragment = -1;
  head.local_step = donation.local_step;
  head.payload_bytes = donation.state.size();
  const auto reply = put_frame(client, "/v1/recovery/" + http::url_encode(donation.id), head,
                               donation.state, timeout);
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail(http::error_of(*reply, "PUT inner state"));
  return {};
}

void Exchange::donate(const Donation& donation) {
  send_events(*relay_client_);
  const Status sent = send_inner_state(*relay_client_, donation, kTransferTimeout);
  log_.info("inner state donated", {{"relay", donation.id},
                                    {"bytes", donation.state.size()},
                                    {"result", sent ? "sent" : sent.error().describe()}});
}

void Exchange::leave_inner_state(const std::string& leave_reply,
                                 const std::function<std::vector<std::byte>()>& inner_state) {
  const auto json = nlohmann::json::parse(leave_reply, nullptr, false);
  if (!inner_state || !json.is_object()) return;
  const auto id = json.find("innerState");
  if (id == json.end() || !id->is_string()) return;
  const Donation donation{
      id->get<std::string>(), inner_state(), {}, {}, hub_.look([](const diloco::LearnerCore& core) {
        return core.local_step();
      })};
  hub_.record(diloco::tape::Donate{donation.id});
  const auto client = make_client(seconds(10));
  send_events(*client);
  const Status sent = send_inner_state(*client, donation, kLeaveTimeout);
  log_.info("inner state left behind", {{"id", donation.id},
                                        {"bytes", donation.state.size()},
                                        {"result", sent ? "kept" : sent.error().describe()}});
}

void Exchange::relay(const std::stop_token& stop) {
  std::string received;  // id of the last relay that was fetched or given up
  std::string trying;
  TimePoint give_up{};
  while (!stop.stop_requested() && !hub_.ended()) {
    if (const auto donation = hub_.take_donation()) {
      donate(*donation);
      continue;
    }
    const std::int64_t seen = hub_.generation();
    const auto task =
        hub_.look([](const diloco::LearnerCore& core) { return core.recover_task(); });
    if (!task || task->id == received || !greeted_) {
      if (!hub_.has_donation()) hub_.wait_change(stop, seen, seconds(1));
      continue;
    }
    if (task->id != trying) {
      trying = task->id;
      give_up = clock_.now() + kDonorTimeout;
    }
    const Status done = fetch_inner_state(*task);
    if (stop.stop_requested()) return;
    // 404: the donor has not reached a boundary, or still sends.
    if (!done && done.error().kind == ErrorKind::kNotFound && clock_.now() < give_up) {
      sleep(stop, seconds(0.1));
      continue;
    }
    received = task->id;
    if (done) continue;
    log_.warn("inner state not received",
              {{"relay", task->id}, {"error", done.error().describe()}});
    hub_.with_core([&](diloco::LearnerCore& core) { core.recovery_failed(task->id); });
  }
}

}  // namespace archipelago::learner
