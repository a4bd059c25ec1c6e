"""The few verbs that a conversation needs of a tokenizer.

A protocol, so that this folder reads no model library: whatever has these verbs will do. The tokenizers of
`transformers` have them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class AddedToken(Protocol):
    """A token that is recognised as a whole, before any other rule of the tokenizer."""

    @property
    def content(self) -> str: ...
    @property
    def special(self) -> bool: ...
    @property
    def lstrip(self) -> bool: ...
    @property
    def rstrip(self) -> bool: ...


class Tokenizer(Protocol):
    @property
    def chat_template(self) -> Any: ...
    @property
    def bos_token(self) -> str | None: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token(self) -> str | None: ...
    @property
    def all_special_ids(self) -> Sequence[int]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...

    def encode(
        self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> list[int]: ...
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str: ...
    def convert_ids_to_tokens(self, ids: int) -> Any: ...
    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...
