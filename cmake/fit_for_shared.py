#!/usr/bin/env python3
"""Makes static archives of position-independent executables fit for shared libraries.

    fit_for_shared.py --ar AR --nm NM --to FOLDER ARCHIVE...

Debian compiles libprotobuf.a and libabsl_*.a for position-independent executables. Their code can be
linked into a shared library, too, but for two things:

- An executable's thread-local variables are at a distance from the thread's pointer that the linker knows
  (R_X86_64_TPOFF32, the local-exec model), a library's are at one that the loader finds out and puts into
  a table (R_X86_64_GOTTPOFF, initial-exec). See "ELF Handling For Thread-Local Storage" by U. Drepper.
- An executable may expect other libraries' variables, such as std::cerr and virtual tables, at a place of
  its own (R_X86_64_PC32, copied there by the loader), a library looks up where they are (R_X86_64_GOTPCREL).

Some dozens of instructions do either. What each does is moved behind the section's code, in the library's
way, and a jump takes its place.

Prints, a line each, what to link with instead: ARCHIVE itself where nothing was to be done, else a copy in
FOLDER. Fails on an instruction that it does not know. Debuggers see the moved instructions as nobody's.
"""

import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile

PC32, GOTPCREL, GOTTPOFF, TPOFF32 = 2, 9, 22, 23
SHT_RELA = 4
SHF_EXECINSTR = 4
STV_DEFAULT = 0

# Opcodes that may have a thread-local variable as their operand, and how many bytes of an immediate follow it. Of those
# that take registers without naming them there are none.
OPCODES = {
    b"\x80": 1, b"\x83": 1, b"\xc6": 1, b"\x81": 4, b"\xc7": 4, b"\x63": 0, b"\x8d": 0,
    b"\x0f\xb6": 0, b"\x0f\xb7": 0, b"\x0f\xbe": 0, b"\x0f\xbf": 0,
    **{bytes([op + form]): 0 for op in range(0, 0x40, 8) for form in range(4)},  # add, or, ..., cmp
    **{bytes([op]): 0 for op in range(0x84, 0x8c)},  # test, xchg, mov
}
SCRATCH = (7, 6, 2, 1)  # rdi, rsi, rdx, rcx: any that the instruction does not use
STACK_POINTER = 4


class Unknown(Exception):
    pass


def load(opcode, register):
    """`mov` or `add` of a table's entry, without its place."""
    return bytes([0x48 + (register >> 3 << 2), opcode, (register & 7) << 3 | 5])


class ThreadLocal:
    """An instruction with a thread-local variable, whose distance is in the 4 bytes at `at`."""

    relocation = GOTTPOFF

    def __init__(self, code, at):
        self.add = None  # the register that the distance is added to
        if code[at - 1] == 0x05 and code[at - 2] == 0x48:  # add $distance, %rax
            self.begin, self.end, self.add = at - 2, at + 4, 0
            return
        if code[at - 1] >> 3 == 0b11000 and code[at - 2] == 0x81 and code[at - 3] & 0xFE == 0x48:
            self.add = (code[at - 1] & 7) + 8 * (code[at - 3] & 1)
            self.begin, self.end = at - 3, at + 4
            return
        # %fs:distance, which has a SIB byte without registers, or distance(%base).
        self.fs = code[at - 1] == 0x25 and code[at - 2] & 0xC7 == 0x04
        modrm = at - 2 if self.fs else at - 1
        if not self.fs and (code[modrm] >> 6 != 2 or code[modrm] & 7 == 4):
            raise Unknown(at)
        begin = modrm - (2 if code[modrm - 2] == 0x0F else 1)
        self.opcode = bytes(code[begin:modrm])
        if self.opcode not in OPCODES:
            raise Unknown(at)
        self.rex = 0
        if code[begin - 1] & 0xF0 == 0x40:
            begin -= 1
            self.rex = code[begin]
        if self.fs:
            begin -= 1
            if code[begin] != 0x64:
                raise Unknown(at)
        elif not self.rex & 8:
            raise Unknown(at)
        self.register = (code[modrm] >> 3 & 7) + (8 if self.rex & 4 else 0)
        self.base = None if self.fs else (code[modrm] & 7) + (8 if self.rex & 1 else 0)
        immediate = OPCODES[self.opcode]
        if self.register == STACK_POINTER and immediate == 0:
            raise Unknown(at)
        self.begin, self.end = begin, at + 4 + immediate
        self.immediate = bytes(code[at + 4 : self.end])

    def elsewhere(self, addend):
        """What does the same, and where in it the place of the table's entry is."""
        if self.add is not None:
            if addend != 0:
                raise Unknown(self.begin)
            code = load(0x03, self.add)  # add variable@gottpoff(%rip), %register
            return code + bytes(4), len(code)
        scratch = next(r for r in SCRATCH if r not in (self.register, self.base))
        # Below the stack there is what leaf functions keep there.
        code = b"\x48\x8d\x64\x24\x80" + bytes([0x50 + scratch])  # lea -128(%rsp), %rsp; push
        code += load(0x8B, scratch)  # mov variable@gottpoff(%rip), %scratch
        at = len(code)
        code += bytes(4)
        rex = bytes([self.rex]) if self.rex else b""
        field = (self.register & 7) << 3 | 0x80
        if self.fs:
            code += b"\x64" + rex + self.opcode + bytes([field | scratch])
        else:
            code += rex + self.opcode + bytes([field | 4, scratch << 3 | self.base & 7])
        code += struct.pack("<i", addend) + self.immediate
        code += bytes([0x58 + scratch]) + b"\x48\x8d\xa4\x24\x80\x00\x00\x00"  # pop; lea 128(%rsp), %rsp
        return code, at


class External:
    """An instruction that takes the address, or the value, of another library's variable."""

    relocation = GOTPCREL

    def __init__(self, code, at):
        rex, self.opcode, modrm = code[at - 3 : at]
        if rex & 0xFB != 0x48 or self.opcode not in (0x8B, 0x8D) or modrm & 0xC7 != 5:
            raise Unknown(at)
        self.register = (modrm >> 3) + 8 * (rex >> 2 & 1)
        self.begin, self.end = at - 3, at + 4

    def elsewhere(self, addend):
        low, high = self.register & 7, self.register >> 3
        code = load(0x8B, self.register) + bytes(4)
        code += bytes([0x48 + 5 * high, self.opcode, 0x80 | low << 3 | low])
        if low == STACK_POINTER:
            code += b"\x24"  # %r12 needs a SIB byte
        return code + struct.pack("<i", addend + 4), 3


def kind(code, offset, type, undefined):
    """What is to be done about a relocation; None: nothing."""
    if type == TPOFF32:
        return ThreadLocal
    calls = code[offset - 1] in (0xE8, 0xE9) or code[offset - 2] == 0x0F
    return External if type == PC32 and undefined and not calls else None


class Object:
    """An ELF object file for x86-64."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.elf = data[:6] == b"\x7fELF\x02\x01" and struct.unpack_from("<H", data, 18)[0] == 62
        if not self.elf:
            return
        (start,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        if count == 0:  # more than a header can say
            (count,) = struct.unpack_from("<Q", data, start + 32)
        self.headers = [start + i * size for i in range(count)]

    def section(self, i):
        """Offset, size, and the two sections that it is about."""
        offset, size, link, info = struct.unpack_from("<QQII", self.data, self.headers[i] + 24)
        return offset, size, link, info

    def undefined(self, symbols, number):
        """The name of a symbol that others define, in whichever library; None: it is no such symbol."""
        begin, _, strings, _ = self.section(symbols)
        name, _, other, section = struct.unpack_from("<IBBH", self.data, begin + 24 * number)
        if section != 0 or name == 0 or other & 3 != STV_DEFAULT:
            return None
        at = self.section(strings)[0] + name
        return bytes(self.data[at : self.data.index(b"\0", at)])

    def relocations(self):
        """Of each section: where their records are, with offset, type, addend and undefined symbol."""
        for i, h in enumerate(self.headers if self.elf else []):
            if struct.unpack_from("<I", self.data, h + 4)[0] != SHT_RELA:
                continue
            begin, size, symbols, of = self.section(i)
            if not struct.unpack_from("<Q", self.data, self.headers[of] + 8)[0] & SHF_EXECINSTR:
                continue
            records = []
            for at in range(begin, begin + size, 24):
                offset, info, addend = struct.unpack_from("<QQq", self.data, at)
                symbol = self.undefined(symbols, info >> 32)
                records.append((at, offset, info & 0xFFFFFFFF, addend, symbol))
            yield of, records

    def rewrite(self, defined):
        """Whether there was something to be done. `defined`: what the archives define together."""
        done = False
        for of, records in list(self.relocations()):
            places = {record[1] for record in records}
            begin, size, _, _ = self.section(of)
            code = self.data[begin : begin + size]
            for at, offset, type, addend, symbol in records:
                what = kind(code, offset, type, symbol is not None and symbol not in defined)
                if what is not None:
                    instruction = what(code, offset)
                    if places & set(range(instruction.begin, instruction.end)) != {offset}:
                        raise Unknown(offset)
                    field = self.move(code, instruction, addend)
                    (info,) = struct.unpack_from("<Q", self.data, at + 8)
                    info = info & ~0xFFFFFFFF | what.relocation
                    struct.pack_into("<QQq", self.data, at, field, info, -4)
            if len(code) != size:
                self.data += bytes(-len(self.data) % 64)
                struct.pack_into("<QQ", self.data, self.headers[of] + 24, len(self.data), len(code))
                self.data += code
                done = True
        return done

    @staticmethod
    def move(code, instruction, addend):
        """Moves it to the end. Where the place of a table's entry goes."""
        code += b"\xcc" * (-len(code) % 16)
        moved, field = instruction.elsewhere(addend)
        here, length = len(code), instruction.end - instruction.begin
        back = instruction.end - (here + len(moved) + 5)
        code += moved + b"\xe9" + struct.pack("<i", back)
        jump = b"\xe9" + struct.pack("<i", here - (instruction.begin + 5))
        code[instruction.begin : instruction.end] = jump.ljust(length, b"\x90")
        return here + field


def defined_by(archives, nm):
    """The names of symbols that any of them defines."""
    listed = subprocess.run([nm, "--defined-only", "--extern-only", "--format=posix", *archives],
                            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return {line.split(b" ")[0] for line in listed.splitlines()}


def members(archive):
    """Names and contents."""
    with open(archive, "rb") as file:
        data = file.read()
    at, names = 8, b""
    while at + 60 <= len(data):
        name, size = data[at : at + 16].rstrip(), int(data[at + 48 : at + 58])
        content = data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if name == b"//":
            names = content
        elif name not in (b"/", b"/SYM64/"):
            if name.startswith(b"/"):
                begin = int(name[1:])
                name = names[begin : names.index(b"/\n", begin)]
            yield name.removesuffix(b"/").decode(), content


def fit(archive, defined, folder, ar):
    """What to link with instead of `archive`."""
    changed = []
    for name, content in members(archive):
        member = Object(content)
        try:
            if member.rewrite(defined):
                changed.append((name, member.data))
        except Unknown as unknown:
            sys.exit(f"{archive}({name}): the instruction at {unknown} is not known here")
    if not changed:
        return archive
    copy = os.path.join(folder, os.path.basename(archive))
    shutil.copyfile(archive, copy)
    with tempfile.TemporaryDirectory() as objects:
        paths = [os.path.join(objects, name) for name, _ in changed]
        for path, (_, data) in zip(paths, changed):
            with open(path, "wb") as file:
                file.write(data)
        subprocess.run([ar, "rD", copy, *paths], check=True)
    return copy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ar", required=True)
    parser.add_argument("--nm", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("archives", nargs="+")
    arguments = parser.parse_args()
    os.makedirs(arguments.to, exist_ok=True)
    defined = defined_by(arguments.archives, arguments.nm)
    for archive in arguments.archives:
        print(fit(archive, defined, arguments.to, arguments.ar))


main()
