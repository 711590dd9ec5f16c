#pragma once
// Frames of every kind, and the knife to damage them.
#include <cstring>
#include <string>
#include <vector>
#include <xxhash.h>

#include "common/wire/frame.h"

namespace archipelago::wire::test {

inline Bytes16 counting16(std::uint8_t from) {
  Bytes16 out{};
  for (auto& byte : out) byte = from++;
  return out;
}

inline FrameHeader upload_header() {
  FrameHeader h;
  h.kind = FrameKind::kUpload;
  h.codec = codec::Codec::kInt4;
  h.run_id = counting16(0x10);
  for (std::size_t i = 0; i < h.layout_digest.size(); ++i)
    h.layout_digest[i] = static_cast<std::uint8_t>(0x80 + i);
  h.session = counting16(0x40);
  h.unit = "island-0";
  h.incarnation = Incarnation(3);
  h.t = GlobalStep(1234567);
  h.base = GlobalStep(1234543);
  h.fragment = 7;
  h.attempt = 2;
  h.steps = 24;
  h.tokens = 98304;
  h.local_step = LocalStep(4242);
  h.consumed = {{11, 0, 256}, {12, 16, 40}};
  return h;
}

inline FrameHeader delta_header() {
  FrameHeader h = upload_header();
  h.kind = FrameKind::kDelta;
  h.codec = codec::Codec::kInt8;
  h.unit.clear();
  h.incarnation = Incarnation(0);
  h.session = {};
  h.attempt = 0;
  h.steps = 0;
  h.tokens = 0;
  h.local_step = LocalStep(0);
  h.consumed.clear();
  h.members = {"island-0", "island-1"};
  h.excluded = {"far-away.2"};
  return h;
}

inline FrameHeader keyframe_header() {
  FrameHeader h = delta_header();
  h.kind = FrameKind::kKeyframe;
  h.codec = codec::Codec::kBf16;
  h.base = GlobalStep(-1);
  h.excluded.clear();
  return h;
}

inline FrameHeader seed_header() {
  FrameHeader h = upload_header();
  h.kind = FrameKind::kSeedKeyframe;
  h.codec = codec::Codec::kFp32;
  h.t = GlobalStep(0);
  h.base = GlobalStep(-1);
  h.attempt = 1;
  h.steps = 0;
  h.tokens = 0;
  h.local_step = LocalStep(0);
  h.consumed.clear();
  return h;
}

inline FrameHeader inner_state_header() {
  FrameHeader h = upload_header();
  h.kind = FrameKind::kInnerState;
  h.codec = codec::Codec::kBf16;
  h.fragment = -1;
  h.base = GlobalStep(-1);
  h.attempt = 0;
  h.consumed.clear();
  return h;
}

inline std::vector<std::byte> concat(const std::vector<std::byte>& a,
                                     const std::vector<std::byte>& b) {
  auto out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

inline std::vector<std::byte> payload_of(std::size_t size) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 37 + 5);
  return out;
}

// Writes `value` at `offset` of a serialized header and makes its checksum right again.
template <class T>
std::vector<std::byte> patched(std::vector<std::byte> header, std::size_t offset, T value) {
  std::memcpy(header.data() + offset, &value, sizeof value);
  const std::uint64_t hash = XXH3_64bits(header.data(), header.size() - 8);
  std::memcpy(header.data() + header.size() - 8, &hash, sizeof hash);
  return header;
}

inline ErrorKind kind_of(const Result<FrameHeader>& result) {
  return result ? ErrorKind::kInternal : result.error().kind;
}

// Feeds `frame` in pieces of `piece` bytes; the payload as the sinks saw it, or the first error.
inline Result<std::vector<std::byte>> read_in_pieces(const std::vector<std::byte>& frame,
                                                     std::size_t piece,
                                                     const FrameLimits& limits = {}) {
  std::vector<std::byte> payload;
  FrameReader reader(limits, nullptr, [&payload](std::span<const std::byte> bytes) -> Status {
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    return {};
  });
  std::span<const std::byte> rest(frame);
  while (!rest.empty()) {
    const auto next = rest.first(std::min(piece, rest.size()));
    ARCH_TRY_VOID(reader.feed(next));
    rest = rest.subspan(next.size());
  }
  ARCH_TRY_VOID(reader.finish());
  return payload;
}

}  // namespace archipelago::wire::test
