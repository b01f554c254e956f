/* SPDX-License-Identifier: MIT */
#include "make_elf.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct buffer {
    char* data;
    size_t length, space;
};

static size_t append(struct buffer* buffer, const void* data, size_t length) {
    size_t at = buffer->length;
    if (buffer->length + length > buffer->space) {
        buffer->space = (buffer->length + length) * 2;
        buffer->data = realloc(buffer->data, buffer->space);
        if (!buffer->data) abort();
    }
    if (length) memcpy(buffer->data + at, data, length);
    buffer->length += length;
    return at;
}

static void append_symbol(struct buffer* table, struct buffer* strings,
                          const struct test_symbol* symbol) {
    Elf64_Sym entry = {0};
    entry.st_name = (Elf64_Word)append(strings, symbol->name, strlen(symbol->name) + 1);
    entry.st_info = ELF64_ST_INFO(symbol->bind, symbol->type);
    entry.st_shndx = symbol->section;
    entry.st_value = symbol->address;
    entry.st_size = 16;
    append(table, &entry, sizeof(entry));
}

static Elf64_Shdr section(uint32_t type, uint64_t offset, uint64_t size, uint32_t link,
                          uint64_t entry_size) {
    Elf64_Shdr header = {0};
    header.sh_type = type;
    header.sh_offset = offset;
    header.sh_size = size;
    header.sh_link = link;
    header.sh_entsize = entry_size;
    return header;
}

static int write_at(int fd, const void* data, size_t length, uint64_t offset) {
    const char* at = data;
    while (length) {
        ssize_t written = pwrite(fd, at, length, (off_t)offset);
        if (written <= 0) return -1;
        at += written;
        length -= (size_t)written;
        offset += (uint64_t)written;
    }
    return 0;
}

int make_elf(const char* path, const struct test_elf* elf) {
    struct buffer strings = {0}, symbols = {0}, dynstrings = {0}, dynsymbols = {0}, versions = {0};
    struct buffer sections = {0};
    const Elf64_Sym null_symbol = {0};
    const uint16_t no_version = 0;
    uint64_t at = elf->tables_at ? elf->tables_at : SB_TEST_CODE_OFFSET + SB_TEST_CODE_SIZE;
    int fd, ret = -1;

    append(&strings, "", 1);
    append(&dynstrings, "", 1);
    append(&symbols, &null_symbol, sizeof(null_symbol));
    append(&dynsymbols, &null_symbol, sizeof(null_symbol));
    append(&versions, &no_version, sizeof(no_version));
    for (size_t i = 0; i < elf->filler_symbols; i++) {
        char name[32] = "filler_";
        size_t length = 7, rest = i;
        do name[length++] = (char)('a' + rest % 26);
        while ((rest /= 26) && length < sizeof(name) - 1);
        name[length] = '\0';
        const struct test_symbol filler = {name, STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
        append_symbol(&symbols, &strings, &filler);
    }
    for (size_t i = 0; i < elf->symtab_count; i++)
        append_symbol(&symbols, &strings, &elf->symtab[i]);
    for (size_t i = 0; i < elf->dynsym_count; i++) {
        append_symbol(&dynsymbols, &dynstrings, &elf->dynsym[i]);
        append(&versions, &elf->dynsym[i].version, sizeof(uint16_t));
    }

    const size_t first = 2 + elf->filler_sections;
    const size_t count = first + 5;
    Elf64_Shdr header = section(SHT_NULL, 0, 0, 0, 0);
    if (count >= SHN_LORESERVE) header.sh_size = count;
    append(&sections, &header, sizeof(header));
    header = section(SHT_PROGBITS, SB_TEST_CODE_OFFSET, SB_TEST_CODE_SIZE, 0, 0);
    for (size_t i = 0; i < 1 + elf->filler_sections; i++)
        append(&sections, &header, sizeof(header));
    header = section(elf->symtab ? SHT_SYMTAB : SHT_PROGBITS, at, symbols.length,
                     (uint32_t)first + 1, sizeof(Elf64_Sym));
    append(&sections, &header, sizeof(header));
    header = section(SHT_STRTAB, at + symbols.length, strings.length, 0, 0);
    append(&sections, &header, sizeof(header));
    uint64_t dynamic_at = at + symbols.length + strings.length;
    header = section(elf->dynsym ? SHT_DYNSYM : SHT_PROGBITS, dynamic_at, dynsymbols.length,
                     (uint32_t)first + 3, sizeof(Elf64_Sym));
    append(&sections, &header, sizeof(header));
    header = section(SHT_STRTAB, dynamic_at + dynsymbols.length, dynstrings.length, 0, 0);
    append(&sections, &header, sizeof(header));
    header = section(elf->dynsym ? SHT_GNU_versym : SHT_PROGBITS,
                     dynamic_at + dynsymbols.length + dynstrings.length, versions.length,
                     (uint32_t)first + 2, sizeof(uint16_t));
    append(&sections, &header, sizeof(header));

    Elf64_Ehdr file = {0};
    memcpy(file.e_ident, ELFMAG, SELFMAG);
    file.e_ident[EI_CLASS] = ELFCLASS64;
    file.e_ident[EI_DATA] = ELFDATA2LSB;
    file.e_ident[EI_VERSION] = EV_CURRENT;
    file.e_type = ET_DYN;
    file.e_machine = SB_TEST_MACHINE;
    file.e_version = EV_CURRENT;
    file.e_phoff = sizeof(file);
    file.e_shoff = dynamic_at + dynsymbols.length + dynstrings.length + versions.length;
    file.e_ehsize = sizeof(file);
    file.e_phentsize = sizeof(Elf64_Phdr);
    file.e_phnum = 1;
    file.e_shentsize = sizeof(Elf64_Shdr);
    file.e_shnum = count >= SHN_LORESERVE ? 0 : (Elf64_Half)count;
    Elf64_Phdr code = {0};
    code.p_type = PT_LOAD;
    code.p_flags = PF_R | PF_X;
    code.p_offset = SB_TEST_CODE_OFFSET;
    code.p_vaddr = SB_TEST_CODE_ADDRESS;
    code.p_filesz = code.p_memsz = SB_TEST_CODE_SIZE;
    static const unsigned char nop[SB_TEST_STEP] = SB_TEST_NOP;
    unsigned char text[SB_TEST_CODE_SIZE];
    for (size_t i = 0; i < sizeof(text); i++) text[i] = nop[i % SB_TEST_STEP];

    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0755);
    if (fd >= 0 && !write_at(fd, &file, sizeof(file), 0) &&
        !write_at(fd, &code, sizeof(code), file.e_phoff) &&
        !write_at(fd, text, sizeof(text), SB_TEST_CODE_OFFSET) &&
        !write_at(fd, symbols.data, symbols.length, at) &&
        !write_at(fd, strings.data, strings.length, at + symbols.length) &&
        !write_at(fd, dynsymbols.data, dynsymbols.length, dynamic_at) &&
        !write_at(fd, dynstrings.data, dynstrings.length, dynamic_at + dynsymbols.length) &&
        !write_at(fd, versions.data, versions.length,
                  dynamic_at + dynsymbols.length + dynstrings.length) &&
        !write_at(fd, sections.data, sections.length, file.e_shoff))
        ret = 0;
    if (fd >= 0) close(fd);
    free(strings.data);
    free(symbols.data);
    free(dynstrings.data);
    free(dynsymbols.data);
    free(versions.data);
    free(sections.data);
    return ret;
}
