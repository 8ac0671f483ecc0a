// Tabs: one part of the page is shown at a time, chosen with the mouse or with the arrow keys.

export class Tabs {
  constructor(list) {
    this.tabs = [...list.querySelectorAll("[role=tab]")];
    this.panels = this.tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
    this.tabs.forEach((tab, index) => {
      tab.addEventListener("click", () => this.show(index));
      tab.addEventListener("keydown", (event) => this.move(event, index));
    });
    this.show(0);
  }

  show(chosen) {
    this.tabs.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === chosen));
      tab.tabIndex = index === chosen ? 0 : -1;
      this.panels[index].hidden = index !== chosen;
    });
  }

  // The tab of this id, as from a link in another part.
  open(id) {
    this.show(this.tabs.findIndex((tab) => tab.id === id));
  }

  move(event, index) {
    const last = this.tabs.length - 1;
    const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index === 0 ? last : index - 1,
      Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.show(next);
    this.tabs[next].focus();
  }
}
