// SPDX-License-Identifier: GPL-2.0-only
#include <linux/elf.h>
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/limits.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "sb_elf.h"

#define SB_CHUNK (64U << 10)
#define SB_SEGMENTS_MAX 64
#define SB_SECTIONS_MAX (1U << 20)
#define SB_SYMBOLS_MAX (1U << 26)
#define SB_STRINGS_MAX (1U << 30)
#define SB_NAMES_MAX (1U << 20)

/* not in every kernel's headers */
#define SB_SHT_GNU_VERSYM 0x6fffffff
#define SB_VERSION_HIDDEN 0x8000
#define SB_STT_GNU_IFUNC 10

struct sb_segment {
	u64 address;
	u64 offset;
	u64 size;
};

/* Where the symbol's name stands in a string table. */
struct sb_name {
	u32 at;
	bool hidden;	/* "name@VERSION": not the default version */
};

struct sb_elf {
	const struct sb_reader *reader;
	const char *symbol;	/* or NULL: any function that begins at best_offset */
	size_t symbol_length;
	Elf64_Ehdr header;
	struct sb_segment segments[SB_SEGMENTS_MAX];
	unsigned int segment_count;
	struct sb_name *names;
	size_t name_count;
	size_t name_space;
	int best_rank;
	u64 best_offset;
	u64 section_count;
	char *chunk;	/* SB_CHUNK bytes */
};

static int sb_read(const struct sb_elf *elf, void *buffer, size_t length, u64 offset)
{
	const struct sb_reader *reader = elf->reader;
	ssize_t got;

	if (offset > reader->size || length > reader->size - offset)
		return -ENOEXEC;
	got = reader->read(reader->context, buffer, length, offset);
	if (got < 0)
		return got;
	return (size_t)got == length ? 0 : -ENOEXEC;
}

/* Whether `count` entries of `size` bytes from `offset` on are inside the file. */
static bool sb_inside(const struct sb_elf *elf, u64 offset, u64 count, u64 size)
{
	u64 length, end;

	return !check_mul_overflow(count, size, &length) &&
	       !check_add_overflow(offset, length, &end) && end <= elf->reader->size;
}

static int sb_read_header(struct sb_elf *elf)
{
	Elf64_Ehdr *header = &elf->header;
	int ret = sb_read(elf, header, sizeof(*header), 0);

	if (ret)
		return ret;
	if (memcmp(header->e_ident, ELFMAG, SELFMAG) ||
	    header->e_ident[EI_CLASS] != ELFCLASS64 ||
	    header->e_ident[EI_DATA] != ELF_DATA ||
	    header->e_ident[EI_VERSION] != EV_CURRENT ||
	    header->e_machine != ELF_ARCH ||
	    (header->e_type != ET_EXEC && header->e_type != ET_DYN) ||
	    header->e_phentsize != sizeof(Elf64_Phdr))
		return -ENOEXEC;
	return 0;
}

/* Collects the executable parts of the file. */
static int sb_read_segments(struct sb_elf *elf)
{
	const Elf64_Ehdr *header = &elf->header;
	const size_t per_chunk = SB_CHUNK / sizeof(Elf64_Phdr);
	const Elf64_Phdr *entries = (const Elf64_Phdr *)elf->chunk;
	size_t first, i;

	if (!header->e_phnum || !sb_inside(elf, header->e_phoff, header->e_phnum,
					   sizeof(Elf64_Phdr)))
		return -ENOEXEC;
	for (first = 0; first < header->e_phnum; first += per_chunk) {
		size_t count = min_t(size_t, per_chunk, header->e_phnum - first);
		int ret = sb_read(elf, elf->chunk, count * sizeof(Elf64_Phdr),
				  header->e_phoff + first * sizeof(Elf64_Phdr));

		if (ret)
			return ret;
		for (i = 0; i < count; i++) {
			const Elf64_Phdr *entry = &entries[i];

			if (entry->p_type != PT_LOAD || !(entry->p_flags & PF_X))
				continue;
			if (!sb_inside(elf, entry->p_offset, entry->p_filesz, 1) ||
			    elf->segment_count == SB_SEGMENTS_MAX)
				return -ENOEXEC;
			elf->segments[elf->segment_count++] = (struct sb_segment) {
				entry->p_vaddr, entry->p_offset, entry->p_filesz
			};
		}
	}
	return elf->segment_count ? 0 : -ENOEXEC;
}

static bool sb_address_to_offset(const struct sb_elf *elf, u64 address, u64 *offset)
{
	unsigned int i;

	for (i = 0; i < elf->segment_count; i++) {
		const struct sb_segment *segment = &elf->segments[i];

		if (address >= segment->address && address - segment->address < segment->size) {
			*offset = address - segment->address + segment->offset;
			return true;
		}
	}
	return false;
}

static int sb_read_section(const struct sb_elf *elf, u64 index, Elf64_Shdr *section)
{
	if (index >= elf->section_count)
		return -ENOEXEC;
	return sb_read(elf, section, sizeof(*section),
		       elf->header.e_shoff + index * sizeof(*section));
}

static int sb_count_sections(struct sb_elf *elf)
{
	const Elf64_Ehdr *header = &elf->header;
	Elf64_Shdr first;
	int ret;

	if (!header->e_shoff)
		return 0;
	if (header->e_shentsize != sizeof(Elf64_Shdr))
		return -ENOEXEC;
	elf->section_count = header->e_shnum;
	if (!header->e_shnum) {
		/* extended numbering: the count stands in the first section's size */
		elf->section_count = 1;
		ret = sb_read_section(elf, 0, &first);
		if (ret)
			return ret;
		elf->section_count = first.sh_size;
	}
	if (elf->section_count > SB_SECTIONS_MAX ||
	    !sb_inside(elf, header->e_shoff, elf->section_count, sizeof(Elf64_Shdr)))
		return -ENOEXEC;
	return 0;
}

static int sb_add_name(struct sb_elf *elf, u32 at, bool hidden)
{
	if (elf->name_count == elf->name_space) {
		size_t space = elf->name_space ? elf->name_space * 4 : 64;
		struct sb_name *names;

		if (space > SB_NAMES_MAX)
			return -ENOEXEC;
		names = kvmalloc_array(space, sizeof(*names), GFP_KERNEL);
		if (!names)
			return -ENOMEM;
		if (elf->name_count)
			memcpy(names, elf->names, elf->name_count * sizeof(*names));
		kvfree(elf->names);
		elf->names = names;
		elf->name_space = space;
	}
	elf->names[elf->name_count++] = (struct sb_name) { at, hidden };
	return 0;
}

/*
 * Notes where in a string table the name stands, ascending. Symbols are then compared by number:
 * one pass over the strings and one over the symbols, however many there are.
 */
static int sb_find_names(struct sb_elf *elf, const Elf64_Shdr *strings)
{
	const size_t length = elf->symbol_length;
	const size_t window = length + 2;	/* the name and "@@", or its end and one more */
	u64 from = 0;

	elf->name_count = 0;
	if (strings->sh_type != SHT_STRTAB || strings->sh_size > SB_STRINGS_MAX ||
	    !sb_inside(elf, strings->sh_offset, strings->sh_size, 1))
		return -ENOEXEC;
	while (from < strings->sh_size) {
		size_t got = min_t(u64, SB_CHUNK - window, strings->sh_size - from);
		bool last = from + got == strings->sh_size;
		const char *end, *p;
		int ret = sb_read(elf, elf->chunk, got, strings->sh_offset + from);

		if (ret)
			return ret;
		/* after the last string all is as if it ended there */
		memset(elf->chunk + got, 0, window);
		end = elf->chunk + got;
		for (p = elf->chunk; p < end; p++) {
			p = memchr(p, elf->symbol[0], end - p);
			if (!p || (!last && end - p < (ssize_t)window))
				break;
			if ((size_t)(end - p) <= length || memcmp(p, elf->symbol, length) ||
			    (p[length] && p[length] != '@'))
				continue;
			ret = sb_add_name(elf, from + (p - elf->chunk),
					  p[length] == '@' && p[length + 1] != '@');
			if (ret)
				return ret;
		}
		if (last)
			break;
		from += got - window + 1;
	}
	return 0;
}

static const struct sb_name *sb_lookup_name(const struct sb_elf *elf, u32 at)
{
	size_t low = 0, high = elf->name_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (elf->names[middle].at == at)
			return &elf->names[middle];
		if (elf->names[middle].at < at)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/* How good a definition of the function an entry is; 0 is none, less than this a plain label. */
#define SB_RANK_FUNCTION 3

static int sb_rank(const Elf64_Sym *symbol, bool hidden)
{
	int rank;

	if (symbol->st_shndx == SHN_UNDEF || symbol->st_shndx == SHN_ABS ||
	    symbol->st_shndx == SHN_COMMON)
		return 0;
	switch (ELF_ST_TYPE(symbol->st_info)) {
	case STT_FUNC:
		rank = 5;
		break;
	case SB_STT_GNU_IFUNC:
		rank = SB_RANK_FUNCTION;
		break;
	case STT_NOTYPE:	/* a label of hand-written assembly */
		rank = 1;
		break;
	default:
		return 0;
	}
	if (ELF_ST_BIND(symbol->st_info) != STB_LOCAL)
		rank++;
	return hidden ? rank : rank + 8;
}

static int sb_consider(struct sb_elf *elf, const Elf64_Sym *symbol, u64 index,
		       const Elf64_Shdr *versions)
{
	const struct sb_name *name;
	bool hidden;
	u64 offset;
	int rank, ret;

	if (!elf->symbol) {
		if (sb_rank(symbol, true) >= SB_RANK_FUNCTION &&
		    sb_address_to_offset(elf, symbol->st_value, &offset) && offset == elf->best_offset)
			elf->best_rank = SB_RANK_FUNCTION;
		return 0;
	}
	name = sb_lookup_name(elf, symbol->st_name);
	if (!name)
		return 0;
	hidden = name->hidden;
	if (versions && index < versions->sh_size / sizeof(u16)) {
		u16 version;

		ret = sb_read(elf, &version, sizeof(version),
			      versions->sh_offset + index * sizeof(version));
		if (ret)
			return ret;
		hidden = hidden || (version & SB_VERSION_HIDDEN);
	}
	rank = sb_rank(symbol, hidden);
	if (rank > elf->best_rank && sb_address_to_offset(elf, symbol->st_value, &offset)) {
		elf->best_rank = rank;
		elf->best_offset = offset;
	}
	return 0;
}

static int sb_search_table(struct sb_elf *elf, const Elf64_Shdr *table,
			   const Elf64_Shdr *versions)
{
	const size_t per_chunk = SB_CHUNK / sizeof(Elf64_Sym);
	const Elf64_Sym *entries = (const Elf64_Sym *)elf->chunk;
	u64 total = table->sh_size / sizeof(Elf64_Sym), first;
	Elf64_Shdr strings;
	size_t i;
	int ret = 0;

	if (table->sh_entsize != sizeof(Elf64_Sym) || total > SB_SYMBOLS_MAX ||
	    !sb_inside(elf, table->sh_offset, table->sh_size, 1))
		return -ENOEXEC;
	if (elf->symbol) {
		ret = sb_read_section(elf, table->sh_link, &strings);
		if (!ret)
			ret = sb_find_names(elf, &strings);
		if (ret || !elf->name_count)
			return ret;
	}
	for (first = 0; first < total; first += per_chunk) {
		size_t count = min_t(u64, per_chunk, total - first);

		ret = sb_read(elf, elf->chunk, count * sizeof(Elf64_Sym),
			      table->sh_offset + first * sizeof(Elf64_Sym));
		for (i = 0; !ret && i < count; i++)
			ret = sb_consider(elf, &entries[i], first + i, versions);
		if (ret)
			return ret;
	}
	return 0;
}

static int sb_search_sections(struct sb_elf *elf)
{
	const size_t per_chunk = SB_CHUNK / sizeof(Elf64_Shdr);
	const Elf64_Shdr *entries = (const Elf64_Shdr *)elf->chunk;
	Elf64_Shdr symtab = {}, dynsym = {}, versions = {};
	u64 first;
	size_t i;
	int ret;

	for (first = 0; first < elf->section_count; first += per_chunk) {
		size_t count = min_t(u64, per_chunk, elf->section_count - first);

		ret = sb_read(elf, elf->chunk, count * sizeof(Elf64_Shdr),
			      elf->header.e_shoff + first * sizeof(Elf64_Shdr));
		if (ret)
			return ret;
		for (i = 0; i < count; i++) {
			const Elf64_Shdr *entry = &entries[i];

			/* a file has at most one of each; of more, the first counts */
			if (entry->sh_type == SHT_SYMTAB && !symtab.sh_type)
				symtab = *entry;
			else if (entry->sh_type == SHT_DYNSYM && !dynsym.sh_type)
				dynsym = *entry;
			else if (entry->sh_type == SB_SHT_GNU_VERSYM && !versions.sh_type)
				versions = *entry;
		}
	}
	if (symtab.sh_type) {
		ret = sb_search_table(elf, &symtab, NULL);
		if (ret)
			return ret;
	}
	if (dynsym.sh_type)
		return sb_search_table(elf, &dynsym, versions.sh_type ? &versions : NULL);
	return 0;
}

static int sb_elf_open(const struct sb_reader *reader, struct sb_elf **result)
{
	struct sb_elf *elf = kzalloc(sizeof(*elf), GFP_KERNEL);
	int ret;

	if (!elf)
		return -ENOMEM;
	elf->reader = reader;
	elf->chunk = kvmalloc(SB_CHUNK, GFP_KERNEL);
	ret = elf->chunk ? sb_read_header(elf) : -ENOMEM;
	if (!ret)
		ret = sb_read_segments(elf);
	*result = elf;
	return ret;
}

static void sb_elf_close(struct sb_elf *elf)
{
	if (!elf)
		return;
	kvfree(elf->names);
	kvfree(elf->chunk);
	kfree(elf);
}

/* By the symbol's name, or without one by *offset. */
static int sb_search(const struct sb_reader *reader, const char *symbol, u64 *offset)
{
	struct sb_elf *elf = NULL;
	int ret = sb_elf_open(reader, &elf);

	if (ret)
		goto out;
	elf->symbol = symbol;
	elf->symbol_length = symbol ? strlen(symbol) : 0;
	elf->best_offset = *offset;
	ret = sb_count_sections(elf);
	if (!ret)
		ret = sb_search_sections(elf);
	if (!ret && !elf->best_rank)
		ret = -ENOENT;
	if (!ret)
		*offset = elf->best_offset;
out:
	sb_elf_close(elf);
	return ret;
}

int sb_elf_symbol(const struct sb_reader *reader, const char *symbol, u64 *offset)
{
	*offset = 0;
	return sb_search(reader, symbol, offset);
}

int sb_elf_entry(const struct sb_reader *reader, u64 offset)
{
	return sb_search(reader, NULL, &offset);
}

int sb_elf_offset(const struct sb_reader *reader, u64 offset)
{
	struct sb_elf *elf = NULL;
	int ret = sb_elf_open(reader, &elf);
	unsigned int i;

	if (ret)
		goto out;
	ret = -ENOENT;
	for (i = 0; i < elf->segment_count; i++) {
		const struct sb_segment *segment = &elf->segments[i];

		if (offset >= segment->offset && offset - segment->offset < segment->size)
			ret = 0;
	}
out:
	sb_elf_close(elf);
	return ret;
}
