// The streaming halves of frame.h: hash, writer, reader.
#include <algorithm>
#include <new>
#include <xxhash.h>

#include "common/wire/byte_io.h"
#include "common/wire/frame.h"

namespace archipelago::wire {

struct PayloadHash::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};  // aligned as xxHash wants it
};

PayloadHash::PayloadHash() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH3_64bits_reset(state_->xxh.get());
}
PayloadHash::PayloadHash(PayloadHash&&) noexcept = default;
PayloadHash& PayloadHash::operator=(PayloadHash&&) noexcept = default;
PayloadHash::~PayloadHash() = default;

void PayloadHash::update(std::span<const std::byte> piece) {
  if (!piece.empty()) XXH3_64bits_update(state_->xxh.get(), piece.data(), piece.size());
}

std::array<std::byte, kChecksumBytes> PayloadHash::trailer() const {
  const std::uint64_t hash = XXH3_64bits_digest(state_->xxh.get());
  std::array<std::byte, kChecksumBytes> out;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::byte>(hash >> (8 * i) & 0xffU);
  return out;
}

Result<FrameWriter> FrameWriter::create(const FrameHeader& header) {
  ARCH_TRY(auto bytes, serialize_header(header));
  return FrameWriter(std::move(bytes), header.payload_bytes);
}

Status FrameWriter::add_payload(std::span<const std::byte> piece) {
  if (piece.size() > missing_) {
    return fail(ErrorKind::kTooLarge, "frame payload: a piece of " + std::to_string(piece.size()) +
                                          " bytes where the header leaves " +
                                          std::to_string(missing_));
  }
  missing_ -= piece.size();
  hash_.update(piece);
  return {};
}

Result<std::array<std::byte, kChecksumBytes>> FrameWriter::trailer() const {
  if (missing_ > 0)
    return fail(ErrorKind::kInvalid,
                "frame payload: " + std::to_string(missing_) + " bytes are missing");
  return hash_.trailer();
}

Result<std::vector<std::byte>> make_frame(const FrameHeader& header,
                                          std::span<const std::byte> payload) {
  if (header.payload_bytes != payload.size()) {
    return fail(ErrorKind::kInvalid, "frame payload: " + std::to_string(payload.size()) +
                                         " bytes given, the header says " +
                                         std::to_string(header.payload_bytes));
  }
  ARCH_TRY(auto frame, serialize_header(header));
  frame.reserve(frame.size() + payload.size() + kChecksumBytes);
  frame.insert(frame.end(), payload.begin(), payload.end());
  PayloadHash hash;
  hash.update(payload);
  const auto trailer = hash.trailer();
  frame.insert(frame.end(), trailer.begin(), trailer.end());
  return frame;
}

FrameReader::FrameReader(const FrameLimits& limits, HeaderSink on_header, PayloadSink on_payload)
    : limits_(limits), on_header_(std::move(on_header)), on_payload_(std::move(on_payload)) {}

bool FrameReader::collect(std::span<const std::byte>& rest, std::size_t size) {
  const std::size_t count = std::min(rest.size(), size - held_.size());
  held_.insert(held_.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  rest = rest.subspan(count);
  return held_.size() == size;
}

Status FrameReader::take_header(std::span<const std::byte>& rest) {
  if (stage_ == Stage::kPrelude) {
    if (!collect(rest, kPreludeBytes)) return {};
    ARCH_TRY(header_size_, header_size(held_));
    stage_ = Stage::kHeader;
  }
  if (!collect(rest, header_size_)) return {};
  ARCH_TRY(auto header, parse_header(held_, limits_));
  if (on_header_) ARCH_TRY_VOID(on_header_(header));
  header_ = std::move(header);
  held_.clear();
  stage_ = header_->payload_bytes > 0 ? Stage::kPayload : Stage::kTrailer;
  return {};
}

Status FrameReader::take_payload(std::span<const std::byte>& rest) {
  const std::uint64_t missing = header_->payload_bytes - payload_received_;
  const auto piece =
      rest.first(static_cast<std::size_t>(std::min<std::uint64_t>(missing, rest.size())));
  rest = rest.subspan(piece.size());
  hash_.update(piece);
  payload_received_ += piece.size();
  if (payload_received_ == header_->payload_bytes) stage_ = Stage::kTrailer;
  if (on_payload_) return on_payload_(piece);
  return {};
}

Status FrameReader::take_trailer(std::span<const std::byte>& rest) {
  if (!collect(rest, kChecksumBytes)) return {};
  const auto expected = hash_.trailer();
  if (!std::equal(expected.begin(), expected.end(), held_.begin())) {
    return fail(ErrorKind::kCorrupt, "frame payload: checksum differs");
  }
  stage_ = Stage::kComplete;
  return {};
}

Status FrameReader::step(std::span<const std::byte>& rest) {
  switch (stage_) {
    case Stage::kPrelude:
    case Stage::kHeader:
      return take_header(rest);
    case Stage::kPayload:
      return take_payload(rest);
    case Stage::kTrailer:
      return take_trailer(rest);
    case Stage::kComplete:
      return fail(ErrorKind::kCorrupt,
                  "frame: " + std::to_string(rest.size()) + " bytes after its end");
    case Stage::kFailed:
      break;
  }
  return fail(error_);
}

Status FrameReader::feed(std::span<const std::byte> piece) {
  if (stage_ == Stage::kFailed) return fail(error_);
  while (!piece.empty()) {
    if (auto status = step(piece); !status) {
      stage_ = Stage::kFailed;
      error_ = status.error();
      return status;
    }
  }
  return {};
}

Status FrameReader::finish() {
  if (stage_ == Stage::kComplete) return {};
  if (stage_ != Stage::kFailed) {
    error_ = {ErrorKind::kCorrupt, "frame: ends early, after " + std::to_string(payload_received_) +
                                       " bytes of payload"};
    stage_ = Stage::kFailed;
  }
  return fail(error_);
}

}  // namespace archipelago::wire
