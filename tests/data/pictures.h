// Pictures for tests, written by libjpeg and libpng themselves.
#pragma once

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>

namespace muster::test {

struct Picture {
  int height = 0;
  int width = 0;
  int channels = 3;
  std::vector<unsigned char> bytes;  // [height, width, channels]
};

// Smooth, so that JPEG changes it little, and different in each channel.
inline Picture some_picture(int height, int width, int channels = 3) {
  Picture picture{height, width, channels, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        picture.bytes.push_back(
            static_cast<unsigned char>((y * (3 + c) + x * 2 + 40 * c) / 2 % 256));
  return picture;
}

// As hard for JPEG as can be, so that each pixel depends on its neighbours.
inline Picture noisy_picture(int height, int width, int channels = 3) {
  Picture picture = some_picture(height, width, channels);
  unsigned state = 1;
  for (unsigned char& byte : picture.bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<unsigned char>(byte / 2 + (state >> 25));
  }
  return picture;
}

struct JpegKind {
  bool progressive = false;
  bool cmyk = false;  // of 4 channels
  int across = 2;     // pixels of light to one of colour
  int down = 2;
};

inline std::string jpeg_of(const Picture& picture, const JpegKind& kind = {}) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_height = static_cast<JDIMENSION>(picture.height);
  jpeg.image_width = static_cast<JDIMENSION>(picture.width);
  jpeg.input_components = picture.channels;
  jpeg.in_color_space = kind.cmyk ? JCS_CMYK : picture.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  if (!kind.cmyk && picture.channels == 3) {
    jpeg.comp_info[0].h_samp_factor = kind.across;
    jpeg.comp_info[0].v_samp_factor = kind.down;
  }
  if (kind.progressive)
    jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  const size_t row_bytes =
      static_cast<size_t>(picture.width) * static_cast<size_t>(picture.channels);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<unsigned char*>(picture.bytes.data() + row_bytes * jpeg.next_scanline);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string bytes(reinterpret_cast<char*>(memory), size);
  std::free(memory);
  return bytes;
}

// 1 to 4 channels; `bits` 8 or 16 (each byte twice).
// With a chunk eXIf, unless `exif` is empty.
inline std::string png_of(const Picture& picture,
                          int bits = 8,
                          bool interlaced = false,
                          std::string exif = {}) {
  const int types[] = {
      PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string out;
  png_set_write_fn(
      png,
      &out,
      [](png_structp from, png_bytep data, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(from))
            ->append(reinterpret_cast<char*>(data), size);
      },
      [](png_structp) {});
  png_set_IHDR(png,
               info,
               static_cast<png_uint_32>(picture.width),
               static_cast<png_uint_32>(picture.height),
               bits,
               types[picture.channels - 1],
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  std::vector<unsigned char> wide;
  for (const unsigned char byte : picture.bytes)
    for (int i = 0; i < bits / 8; ++i)
      wide.push_back(byte);
  std::vector<png_bytep> rows;
  const size_t row_bytes = wide.size() / static_cast<size_t>(picture.height);
  for (int y = 0; y < picture.height; ++y)
    rows.push_back(wide.data() + row_bytes * static_cast<size_t>(y));
  if (!exif.empty())
    png_set_eXIf_1(
        png, info, static_cast<png_uint_32>(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
  png_write_info(png, info);
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

}  // namespace muster::test
