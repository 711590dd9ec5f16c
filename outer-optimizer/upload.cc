// PUT /v1/rounds/{t}/upload: from socket to validated and stored, in one pass over the bytes
// (protocol.md §3).
#include <algorithm>

#include <nlohmann/json.hpp>

#include "common/wire/frame.h"
#include "common/wire/tape_file.h"
#include "outer-optimizer/routes.h"
#include "outer-optimizer/store/payload.h"

namespace archipelago::outer {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

Result<wire::FrameHeader> read_header(http::BodyReader& body, std::uint64_t max_payload) {
  std::vector<std::byte> bytes(wire::kPreludeBytes);
  ARCH_TRY_VOID(body.read_exact(bytes));
  ARCH_TRY(const std::size_t size, wire::header_size(bytes));
  if (size < bytes.size() || size > wire::kMaxHeaderBytes)
    return fail(ErrorKind::kInvalid, "frame: header size");
  bytes.resize(size);
  ARCH_TRY_VOID(body.read_exact(std::span(bytes).subspan(wire::kPreludeBytes)));
  wire::FrameLimits limits;
  limits.max_payload = max_payload;
  ARCH_TRY(auto header, wire::parse_header(bytes, limits));
  if (body.remaining() != header.payload_bytes + wire::kChecksumBytes) {
    return fail(ErrorKind::kCorrupt,
                "frame: " + std::to_string(body.remaining()) + " bytes follow the header, " +
                    std::to_string(header.payload_bytes + wire::kChecksumBytes) + " are announced");
  }
  return header;
}

// What can be judged from the header alone, before a byte of payload is taken.
Status check_header(const Services& s, const LayoutView& layout, const wire::FrameHeader& header,
                    std::int64_t t) {
  const bool seed = t == 0;
  const wire::FrameKind kind = seed ? wire::FrameKind::kSeedKeyframe : wire::FrameKind::kUpload;
  if (header.kind != kind) {
    return fail(ErrorKind::kInvalid, "frame: kind " + std::string(wire::to_string(header.kind)) +
                                         " given, round " + std::to_string(t) + " takes " +
                                         std::string(wire::to_string(kind)));
  }
  if (header.t.value != t) {
    return fail(ErrorKind::kInvalid, "frame: round " + std::to_string(header.t.value) +
                                         " inside, " + std::to_string(t) + " in the path");
  }
  if (header.run_id != s.run_id_bytes) return fail(ErrorKind::kRefused, "frame: of another run");
  if (header.layout_digest != layout.digest_bytes) {
    return fail(ErrorKind::kRefused, "frame: of another layout, this run has " + layout.digest);
  }
  if (header.unit.empty()) return fail(ErrorKind::kInvalid, "frame: no unit");
  if (header.fragment < 0 || header.fragment >= layout.fragmentation.count()) {
    return fail(ErrorKind::kInvalid,
                "frame: fragment " + std::to_string(header.fragment) + " given, 0 to " +
                    std::to_string(layout.fragmentation.count() - 1) + " exist");
  }
  const codec::Codec codec = seed ? codec::Codec::kFp32 : s.options.uplink;
  if (header.codec != codec) {
    return fail(ErrorKind::kUnsupported, "frame: codec " + std::string(codec::name(header.codec)) +
                                             " given, " + std::string(codec::name(codec)) +
                                             " is expected");
  }
  const std::uint64_t bytes =
      payload_bytes(layout.fragmentation[FragmentId(header.fragment)], codec);
  if (header.payload_bytes != bytes) {
    return fail(ErrorKind::kRefused, "frame: payload of " + std::to_string(header.payload_bytes) +
                                         " bytes, fragment " + std::to_string(header.fragment) +
                                         " has " + std::to_string(bytes));
  }
  return {};
}

diloco::UploadKey key_of(const wire::FrameHeader& header) {
  return {
      {header.unit, header.incarnation, wire::to_hex(header.session)}, header.t, header.attempt};
}

diloco::UploadInfo info_of(const wire::FrameHeader& header, std::uint64_t bytes) {
  diloco::UploadInfo info;
  info.key = key_of(header);
  info.fragment = header.fragment;
  info.base = header.base;
  info.counters = {header.steps, header.tokens};
  info.local_step = header.local_step;
  for (const auto& range : header.consumed) info.consumed.push_back({range.block, range.upto});
  info.bytes = bytes;
  return info;
}

// The payload into one buffer, validated and hashed piece by piece while it is in the cache.
Status read_payload(http::BodyReader& body, std::span<std::byte> into, PayloadValidator& validator,
                    const std::function<void(std::uint64_t)>& progress) {
  wire::PayloadHash hash;
  std::uint64_t received = 0;
  ARCH_TRY_VOID(body.read_exact(into, kPiece, [&](std::span<const std::byte> piece) -> Status {
    received += piece.size();
    hash.update(piece);
    progress(received);
    return validator.advance(std::span<const std::byte>(into).first(received));
  }));
  std::array<std::byte, wire::kChecksumBytes> trailer{};
  ARCH_TRY_VOID(body.read_exact(trailer));
  if (trailer != hash.trailer())
    return fail(ErrorKind::kCorrupt, "frame: the payload's checksum differs");
  if (!validator.complete()) return fail(ErrorKind::kCorrupt, "frame: the payload is incomplete");
  return {};
}

// Small bodies are read to their end before a refusal, so that the connection lives on.
void skip_rest(http::BodyReader& body) {
  if (body.remaining() > kPiece) return;
  std::vector<std::byte> waste(static_cast<std::size_t>(body.remaining()));
  (void)body.read_exact(waste);
}

http::Reply receipt(std::int64_t t, std::int32_t attempt, std::optional<std::int64_t> tape = {}) {
  nlohmann::json json{{"t", t}, {"attempt", attempt}};
  if (tape) json["tape"] = *tape;
  return http::Reply::json(json.dump());
}

// Taken before the upload is complete: a round that merges it is written behind them.
std::optional<std::int64_t> take_upload_events(Services& s, const http::Request& request,
                                               const diloco::UnitKey& who) {
  const std::string_view text = request.header("x-archipelago-tape");
  if (text.empty()) return std::nullopt;
  const auto bytes = wire::parse_tape_header(text);
  const auto written =
      bytes ? take_events(s, who, *bytes, false) : Result<std::int64_t>(fail(bytes.error()));
  if (written) return *written;
  s.log.warn("events not taken", {{"unit", who.unit}, {"why", written.error().message}});
  return std::nullopt;
}

Result<http::Reply> take_seed(Services& s, const LayoutView& layout,
                              const wire::FrameHeader& header, http::BodyReader& body) {
  const diloco::UnitKey who = key_of(header).who;
  const FragmentId fragment(header.fragment);
  const bool base = header.base >= GlobalStep(0);  // a learner's, for a lost disk
  ARCH_TRY_VOID(base ? s.engine.rebuild_allowed(who, fragment) : s.engine.seed_allowed(who));
  ARCH_TRY(const auto memory, s.uploads.budget().take(header.payload_bytes));
  Buffer values(static_cast<std::size_t>(header.payload_bytes));
  PayloadValidator validator(layout.fragmentation[FragmentId(header.fragment)], header.codec);
  ARCH_TRY_VOID(read_payload(body, values.bytes(), validator, [](std::uint64_t) {}));
  ARCH_TRY_VOID(base ? s.engine.stage_base(who, fragment, header.base, std::move(values))
                     : s.engine.stage_seed(who, fragment, std::move(values)));
  return receipt(0, 1);
}

Result<std::int32_t> take_payload(Services& s, const LayoutView& layout,
                                  const wire::FrameHeader& header, http::BodyReader& body) {
  const diloco::UploadKey key = key_of(header);
  ARCH_TRY(auto memory, s.uploads.budget().take(header.payload_bytes));
  StoredUpload upload;
  upload.payload = Buffer(static_cast<std::size_t>(header.payload_bytes));
  upload.codec = header.codec;
  upload.counters = {header.steps, header.tokens};
  upload.bytes = body.size();
  PayloadValidator validator(layout.fragmentation[FragmentId(header.fragment)], header.codec);
  ARCH_TRY_VOID(read_payload(body, upload.payload.bytes(), validator, [&](std::uint64_t received) {
    s.engine.upload_bytes(key, received);
  }));
  upload.norm2 = validator.norm2();
  // Stored before the core hears of it: the merge may start with this very event.
  s.uploads.put(key, std::move(upload), std::move(memory));
  auto attempt = s.engine.upload_complete(info_of(header, body.size()));
  if (!attempt) s.uploads.drop(key);
  return attempt;
}

Result<http::Reply> take_upload(Services& s, const LayoutView& layout,
                                const wire::FrameHeader& header, const http::Request& request,
                                http::BodyReader& body) {
  const diloco::UploadKey key = key_of(header);
  ARCH_TRY_VOID(check_lineage(s, request));
  ARCH_TRY(const auto verdict,
           s.engine.upload_started(key, header.fragment, header.base, body.size()));
  if (verdict == diloco::UploadVerdict::kRepeat) {
    s.metrics.upload("repeat");
    skip_rest(body);
    return receipt(header.t.value, header.attempt);
  }
  const auto written = take_upload_events(s, request, key.who);
  auto attempt = take_payload(s, layout, header, body);
  if (!attempt) {
    s.engine.upload_aborted(key);
    return fail(attempt.error());
  }
  s.metrics.upload("accepted");
  return receipt(header.t.value, *attempt, written);
}

http::Reply put_upload(Services& s, const http::Request& request, http::BodyReader& body) {
  const auto work = [&]() -> Result<http::Reply> {
    ARCH_TRY(const std::int64_t t, request.int_arg(0, 0, std::int64_t{1} << 40));
    const auto layout = s.engine.layout();
    if (layout == nullptr) return fail(ErrorKind::kConflict, "the run has no layout yet");
    ARCH_TRY(const auto header,
             read_header(body, std::max(layout->max_seed_payload, layout->max_upload_payload)));
    ARCH_TRY_VOID(check_header(s, *layout, header, t));
    return t == 0 ? take_seed(s, *layout, header, body)
                  : take_upload(s, *layout, header, request, body);
  };
  auto reply = work();
  if (reply) return std::move(*reply);
  s.metrics.upload(std::string(to_string(reply.error().kind)));
  skip_rest(body);
  return reply_of(s, reply.error());
}

std::uint64_t upload_limit(const Services& s) {
  const auto layout = s.engine.layout();
  if (layout == nullptr) return wire::kMaxHeaderBytes;
  return std::max(layout->max_upload_payload, layout->max_seed_payload) + wire::kMaxHeaderBytes +
         wire::kChecksumBytes;
}

}  // namespace

void add_upload_route(http::Server& server, Services& services) {
  server.route_upload(
      "PUT", "/v1/rounds/{}/upload", [&services] { return upload_limit(services); },
      [&services](const http::Request& request, http::BodyReader& body) {
        return put_upload(services, request, body);
      });
}

}  // namespace archipelago::outer
