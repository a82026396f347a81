/* A .ptd is a flatbuffer that lists segments and names, with a header put in behind its first 8 bytes, and
 * the segments behind it. */
#include "data_file.h"

#include <flat_tensor_generated.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t header_place = 8, header_room = 48, alignment = 128;

struct Header {
  char magic[4] = {'F', 'H', '0', '1'};
  uint32_t length = 40;
  uint64_t buffer_offset = header_room, buffer_size, segment_base, segments_size;
};
static_assert(sizeof(Header) == 40, "as it lies in the file");

void pad(std::string *text) {
  text->resize((text->size() + alignment - 1) / alignment * alignment);
}

} // namespace

bool standin_write_data_file(const char *path, const struct standin_entry *entries, size_t count) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<tandem_ptd::DataSegment>> segments;
  std::vector<flatbuffers::Offset<tandem_ptd::NamedData>> names;
  std::string data;
  for (size_t i = 0; i < count; i++) {
    pad(&data);
    segments.push_back(tandem_ptd::CreateDataSegment(builder, data.size(), entries[i].size));
    names.push_back(tandem_ptd::CreateNamedDataDirect(builder, entries[i].key, static_cast<uint32_t>(i)));
    data.append(static_cast<const char *>(entries[i].data), entries[i].size);
  }
  tandem_ptd::FinishFlatTensorBuffer(builder,
                                     tandem_ptd::CreateFlatTensorDirect(builder, 0, &segments, &names));
  std::string file(reinterpret_cast<const char *>(builder.GetBufferPointer()), builder.GetSize());
  uint32_t root;
  memcpy(&root, file.data(), sizeof root);
  root += header_room;
  memcpy(&file[0], &root, sizeof root);
  Header header;
  header.buffer_size = file.size();
  header.segments_size = data.size();
  file.insert(header_place, header_room, '\0');
  pad(&file);
  header.segment_base = file.size();
  memcpy(&file[header_place], &header, sizeof header);
  file += data;
  FILE *out = fopen(path, "wb");
  bool written = out && fwrite(file.data(), file.size(), 1, out) == 1;
  return out && fclose(out) == 0 && written;
}
