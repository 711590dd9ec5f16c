#include "common/wire/safetensors.h"

#include <cstring>
#include <fstream>

#include <catch2/catch.hpp>

namespace archipelago::wire {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data) {
  std::vector<std::byte> out(8 + header.size() + data);
  const std::uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

Result<SafeHeader> parse(const std::string& header, std::size_t data) {
  const auto bytes = file_of(header, data);
  return parse_safetensors_header(bytes, bytes.size());
}

}  // namespace

TEST_CASE("tensors come back as they were written, in fp32 exactly and in bf16 rounded") {
  const TempDir dir;
  const std::vector<float> a = {1.0F, -2.5F, 3.0e-8F, 65504.0F, 1.00390625F, -0.0F};
  const std::vector<float> b = {7.0F};
  const std::vector<SafeTensorView> tensors = {{"a", {2, 3}, a}, {"b", {}, b}};
  REQUIRE(write_safetensors(dir.path() / "x", tensors));
  const auto file = SafetensorsFile::open(dir.path() / "x");
  REQUIRE(file);
  CHECK(file->metadata().at("format") == "pt");
  REQUIRE(file->find("a") != nullptr);
  CHECK(file->find("a")->shape == std::vector<std::int64_t>{2, 3});
  CHECK(*file->read("a") == a);
  CHECK(*file->read("b") == b);
  CHECK_FALSE(file->read("c"));
  REQUIRE(write_safetensors(dir.path() / "half", tensors, {}, SafeDtype::kBf16));
  const auto half = SafetensorsFile::open(dir.path() / "half");
  REQUIRE(half);
  const auto rounded = *half->read("a");
  CHECK(rounded[0] == 1.0F);
  CHECK(rounded[3] == 65536.0F);
  CHECK(rounded[4] == 1.0F);  // a tie goes to even
}

TEST_CASE("half precision is read") {
  auto bytes = file_of(R"({"h":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})", 8);
  const std::uint16_t halves[4] = {0x3c00, 0xc000, 0x0001, 0x7c00};
  std::memcpy(bytes.data() + bytes.size() - 8, halves, 8);
  const TempDir dir;
  std::ofstream(dir.path() / "h", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  const auto file = SafetensorsFile::open(dir.path() / "h");
  REQUIRE(file);
  const auto values = *file->read("h");
  CHECK(values[0] == 1.0F);
  CHECK(values[1] == -2.0F);
  CHECK(values[2] == 0x1p-24F);
  CHECK(values[3] > 1e38F);
}

TEST_CASE("headers that lie are refused by name") {
  CHECK(parse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const std::vector<std::pair<std::string, std::size_t>> bad = {
      {"[]", 0},
      {"{", 0},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7},   // cut short
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9},   // bytes left over
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8},   // shape and range differ
      {R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8},   // dtype
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8},  // negative
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})",
       8},  // overflow
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8},  // a hole
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8},  // overlap
  };
  for (const auto& [header, data] : bad) {
    CAPTURE(header, data);
    CHECK_FALSE(parse(header, data));
  }
  auto bytes = file_of("{}", 0);
  const std::uint64_t huge = ~0ULL;
  std::memcpy(bytes.data(), &huge, 8);
  CHECK_FALSE(parse_safetensors_header(bytes, bytes.size()));
  CHECK_FALSE(parse_safetensors_header(std::span(bytes).first(4), 4));
}

TEST_CASE("a tensor whose values don't fit its shape is not written") {
  const TempDir dir;
  const std::vector<float> a = {1, 2};
  CHECK_FALSE(write_safetensors(dir.path() / "x", std::vector<SafeTensorView>{{"a", {3}, a}}));
  CHECK_FALSE(write_safetensors(dir.path() / "x",
                                std::vector<SafeTensorView>{{"a", {2}, a}, {"a", {2}, a}}));
  CHECK_FALSE(std::filesystem::exists(dir.path() / "x"));
}

}  // namespace archipelago::wire
