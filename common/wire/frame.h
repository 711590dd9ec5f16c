#pragma once
// The binary frame that carries a fragment: uploads, deltas, keyframes, seeds, inner optimizer
// state (protocol.md §3, §2.9). Byte layout: docs/wire-format.md. Header, payload, trailer;
// little-endian; every length bounded (limits.h).
//
// Errors, the same for a header in one piece and for a stream:
//   kInvalid      not a frame, or a field outside its meaning (a negative counter, a bad name)
//   kUnsupported  another version, kind, codec, block size or flag than this build has
//   kTooLarge     a length or count beyond its limit
//   kCorrupt      a checksum differs, or bytes are missing, left over or inconsistent with the
//   lengths
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/wire/limits.h"

namespace archipelago::wire {

inline constexpr std::uint16_t kFrameVersion = 1;
inline constexpr std::size_t kPreludeBytes = 16;       // enough to know the header's size
inline constexpr std::size_t kFixedHeaderBytes = 160;  // prelude and fixed fields
inline constexpr std::size_t kChecksumBytes = 8;       // ends the header, and is the whole trailer
inline constexpr std::size_t kConsumedRangeBytes = 16;
inline constexpr std::size_t kMaxHeaderBytes =
    kFixedHeaderBytes + kMaxUnitName + kMaxConsumedRanges * kConsumedRangeBytes +
    2 * kMaxFrameUnits * (1 + kMaxUnitName) + kChecksumBytes;

enum class FrameKind : std::uint8_t {
  kUpload = 1,        // base - theta of a contribution
  kDelta = 2,         // master - published, added to the base
  kKeyframe = 3,      // published itself
  kSeedKeyframe = 4,  // a fragment as its seeder initialised it, version 0
  kInnerState = 5,    // inner optimizer state from a donor
};
[[nodiscard]] std::string_view to_string(FrameKind kind);

using Bytes16 = std::array<std::uint8_t, 16>;
using Bytes32 = std::array<std::uint8_t, 32>;

// A UUID's own bytes; any other text (1..255 bytes) by its 128-bit XXH3.
[[nodiscard]] Result<Bytes16> run_id_bytes(std::string_view run_id);
[[nodiscard]] Result<Bytes16> parse_hex16(
    std::string_view hex);  // 32 hex digits, as sessions are written
[[nodiscard]] Result<Bytes32> parse_hex32(
    std::string_view hex);  // 64 hex digits, as layout digests are written
[[nodiscard]] std::string to_hex(std::span<const std::uint8_t> bytes);

// Sequences [from, upto) of a leased block, consumed by the sender.
struct ConsumedRange {
  std::uint64_t block = 0;
  std::uint32_t from = 0;
  std::uint32_t upto = 0;
  bool operator==(const ConsumedRange&) const = default;
};

struct FrameHeader {
  FrameKind kind = FrameKind::kUpload;
  codec::Codec codec = codec::Codec::kFp32;
  Bytes16 run_id{};
  Bytes32 layout_digest{};
  Bytes16 session{};
  std::string unit;         // who speaks; may be empty in deltas and keyframes
  Incarnation incarnation;  // >= 1 where unit is set, else 0
  GlobalStep t;         // the round of an upload; the version that a delta or keyframe brings about
  GlobalStep base{-1};  // version that the payload is relative to; -1: none
  std::int32_t fragment = 0;  // p; -1 in kInnerState: of the whole model
  std::int32_t attempt = 0;   // >= 1 in uploads
  std::int64_t steps = 0;     // counters of the fragment at its snapshot
  std::int64_t tokens = 0;
  LocalStep local_step;
  std::vector<ConsumedRange> consumed;
  std::vector<std::string> members;   // of round t, in deltas and keyframes
  std::vector<std::string> excluded;  // contributed to round t and not merged
  std::uint64_t payload_bytes = 0;
  bool operator==(const FrameHeader&) const = default;
};

struct FrameLimits {
  std::uint64_t max_payload = kMaxFramePayload;
};

// Bytes of the payload when it carries these tensors in this order, each encoded by itself.
// kInvalid: a negative count; kTooLarge: beyond kMaxFramePayload.
[[nodiscard]] Result<std::uint64_t> payload_size(codec::Codec codec,
                                                 std::span<const std::int64_t> tensor_elements);

// Bytes of header, payload and trailer of a header that serializes.
[[nodiscard]] Result<std::uint64_t> frame_size(const FrameHeader& header);

// Refuses (same kinds) what parse_header would refuse.
[[nodiscard]] Result<std::vector<std::byte>> serialize_header(const FrameHeader& header);
// Size of the whole header from its first kPreludeBytes bytes (more may be given).
[[nodiscard]] Result<std::size_t> header_size(std::span<const std::byte> prelude);
// `bytes` is exactly the header.
[[nodiscard]] Result<FrameHeader> parse_header(std::span<const std::byte> bytes,
                                               const FrameLimits& limits = {});

// XXH3-64 of a payload that comes in pieces.
class PayloadHash {
 public:
  PayloadHash();
  PayloadHash(PayloadHash&&) noexcept;
  PayloadHash& operator=(PayloadHash&&) noexcept;
  ~PayloadHash();
  void update(std::span<const std::byte> piece);
  [[nodiscard]] std::array<std::byte, kChecksumBytes> trailer() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Sends a frame in pieces: header_bytes(), then the payload, each piece shown to add_payload, then
// trailer().
class FrameWriter {
 public:
  [[nodiscard]] static Result<FrameWriter> create(const FrameHeader& header);
  [[nodiscard]] std::span<const std::byte> header_bytes() const { return header_; }
  [[nodiscard]] Status add_payload(
      std::span<const std::byte> piece);  // kTooLarge beyond header.payload_bytes
  [[nodiscard]] Result<std::array<std::byte, kChecksumBytes>> trailer()
      const;  // kInvalid while payload is missing

 private:
  FrameWriter(std::vector<std::byte> header, std::uint64_t payload_bytes)
      : header_(std::move(header)), missing_(payload_bytes) {}
  std::vector<std::byte> header_;
  std::uint64_t missing_;
  PayloadHash hash_;
};

// A whole frame in memory; header.payload_bytes must be payload.size().
[[nodiscard]] Result<std::vector<std::byte>> make_frame(const FrameHeader& header,
                                                        std::span<const std::byte> payload);

// Takes a frame in pieces of any size. Holds at most the header; the payload is handed on as it
// comes.
class FrameReader {
 public:
  // Called once, when the header is complete and valid, before any payload; an error of it ends the
  // frame.
  using HeaderSink = std::function<Status(const FrameHeader&)>;
  // Called for every piece of payload in order, *before* the checksum is known: don't act on it
  // until complete().
  using PayloadSink = std::function<Status(std::span<const std::byte>)>;

  FrameReader(const FrameLimits& limits, HeaderSink on_header, PayloadSink on_payload);

  // The first error is final: every later call gives it again.
  [[nodiscard]] Status feed(std::span<const std::byte> piece);
  // At the end of the stream: kCorrupt unless the frame is complete.
  [[nodiscard]] Status finish();
  [[nodiscard]] bool complete() const { return stage_ == Stage::kComplete; }  // checksum verified
  [[nodiscard]] const std::optional<FrameHeader>& header() const { return header_; }
  [[nodiscard]] std::uint64_t payload_received() const { return payload_received_; }

 private:
  enum class Stage { kPrelude, kHeader, kPayload, kTrailer, kComplete, kFailed };
  Status step(std::span<const std::byte>& rest);
  Status take_header(std::span<const std::byte>& rest);
  Status take_payload(std::span<const std::byte>& rest);
  Status take_trailer(std::span<const std::byte>& rest);
  // Moves bytes from rest to held_ until it has `size`; true then.
  bool collect(std::span<const std::byte>& rest, std::size_t size);

  FrameLimits limits_;
  HeaderSink on_header_;
  PayloadSink on_payload_;
  Stage stage_ = Stage::kPrelude;
  std::vector<std::byte>
      held_;  // of the header or trailer; grows with what arrives, never with what is claimed
  std::size_t header_size_ = 0;
  std::optional<FrameHeader> header_;
  std::uint64_t payload_received_ = 0;
  PayloadHash hash_;
  Error error_;
};

}  // namespace archipelago::wire
