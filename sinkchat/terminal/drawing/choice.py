"""Which panel a person wants: F2 and `/panel` go through the forms."""

from dataclasses import dataclass

from sinkchat.terminal.drawing.panel import Form

FORMS: tuple[Form, ...] = ("full", "line", "off")


@dataclass(slots=True)
class PanelChoice:
    """Which panel is drawn; F2 and `/panel` change it."""

    form: Form = "full"

    def change(self) -> None:
        """The next form."""
        self.form = FORMS[(FORMS.index(self.form) + 1) % len(FORMS)]
